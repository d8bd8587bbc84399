"""What is measured: a prompt, or a number of streams that decode, as plans for an executor."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tidemill.core.errors import ConfigError
from tidemill.core.step import PlanRow, RowOptions, SequenceId, StepPlan
from tidemill.graph.graph import Graph

__all__ = ["Work", "decode_work", "parse_decode", "prefill_work"]

_MOST = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One shape of step: so many streams, each with ``context`` tokens in the KV and ``tokens`` to compute."""

    streams: int
    context: int
    tokens: int

    @property
    def name(self) -> str:
        """As tables show it."""
        if self.context == 0:
            return f"prefill {self.tokens}"
        return f"decode {self.streams} at {self.context}"

    @property
    def phase(self) -> str:
        """prefill or decode."""
        return "prefill" if self.context == 0 else "decode"

    @property
    def step_tokens(self) -> int:
        """Tokens of one step."""
        return self.streams * self.tokens

    def blocks(self, block_size: int, later: int) -> int:
        """KV blocks of all streams, with room for ``later`` further tokens each."""
        return self.streams * -(-(self.context + self.tokens + later) // block_size)

    def plan(self, graph: Graph, number: int, *, block_size: int, later: int, profile: bool = False) -> StepPlan:
        """Step ``number``: a prompt begins anew each time, a stream is a token further. Each draws one token."""
        start = self.context + (number if self.context else 0)
        per_stream = self.blocks(block_size, later) // self.streams
        rows = []
        for stream in range(self.streams):
            table = list(range(stream * per_stream, (stream + 1) * per_stream))
            rows.append(
                PlanRow(
                    sequence=SequenceId(stream),
                    tokens=_tokens(graph.vocab_size, stream + number, self.tokens),
                    start=start,
                    block_tables=tuple(table for _ in graph.kv_groups),
                    num_outputs=1,
                    options=RowOptions(),
                )
            )
        return StepPlan(step=number, rows=tuple(rows), profile=profile)


def prefill_work(tokens: int) -> Work:
    """One prompt of this many tokens. Raises ConfigError for none."""
    if not 1 <= tokens <= _MOST:
        raise ConfigError(f"a prompt to measure has 1 to {_MOST} tokens, not {tokens}", param="prefill")
    return Work(streams=1, context=0, tokens=tokens)


def decode_work(streams: int, context: int) -> Work:
    """Streams of this many tokens, one more each. Raises ConfigError for none of either."""
    if not (1 <= streams <= 4096 and 1 <= context <= _MOST):
        raise ConfigError(
            f"decode takes 1 to 4096 streams at 1 to {_MOST} tokens, not {streams}x{context}", param="decode"
        )
    return Work(streams=streams, context=context, tokens=1)


def parse_decode(text: str) -> Work:
    """``16x256``: 16 streams at 256 tokens. Raises ConfigError for anything else."""
    found = re.fullmatch(r"(\d{1,7})x(\d{1,7})", text.strip())
    if found is None:
        raise ConfigError(f"decode takes STREAMSxCONTEXT as in 16x256, not {text!r}", param="decode")
    return decode_work(int(found[1]), int(found[2]))


def _tokens(vocab: int, seed: int, count: int) -> Sequence[int]:
    """Token ids that look like none in particular."""
    return [(1 + seed * 101 + i * i * 7 + i) % vocab for i in range(count)]

"""How far rounding the weights moves the answers: the checkpoint's own logits on a short text, then the rounded ones'.

    KL(exact || rounded) = sum_v p(v) (log p(v) - log q(v)), in nats, the mean over positions
    perplexity           = exp(mean of -log p(next token of the text))

The checkpoint's weights are packed, run and let go before the rounded ones are packed, so both are never held; between
the two stay the logits of the text, 4 bytes per position and token of the vocabulary. Where the checkpoint does not fit
the memory, nothing is compared, and that is said.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tidemill.core.config import EngineConfig
from tidemill.core.errors import DoesNotFit
from tidemill.core.step import PlanRow, RowOptions, SequenceId, StepPlan
from tidemill.executors.factory import make_executor
from tidemill.executors.protocol import Executor, KvPoolSpec
from tidemill.graph.passes.fuse import fuse
from tidemill.models.calibration_text import CALIBRATION_TEXT
from tidemill.models.loading.rounding import RoundedWeights
from tidemill.models.memory_plan import format_bytes, plan_memory
from tidemill.models.model import Model
from tidemill.text.tokenizer import build_tokenizer

__all__ = ["ExactAnswers", "Figures", "exact_answers", "figures"]

Floats = npt.NDArray[np.float32]
_CHUNK = 32
"""Tokens of a step: little workspace, and time is asked after each."""
_SECONDS = 20.0
"""After this long the text ends where it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of one text."""

    positions: int
    mean_kl: float
    """Nats."""
    agreement: float
    """Share of positions with the same most likely token."""
    perplexity: float
    """Of the rounded weights."""
    exact_perplexity: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactAnswers:
    """What the checkpoint's own weights say, or why that is not known."""

    scheme: str
    tokens: Sequence[int] = ()
    logits: Floats | None = None
    """[tokens, vocabulary]"""
    reason: str = ""

    def report(self, executor: Executor, pools: Sequence[KvPoolSpec]) -> str:
        """One line: how far the executor of the rounded weights is from them. Its KV blocks are free to use."""
        if self.logits is None:
            return f"quantize {self.scheme}: not compared with the checkpoint: {self.reason}"
        room = min(pool.num_blocks * pool.block_size for pool in pools)
        tokens = self.tokens[:room]
        rounded = _logits(executor, tokens, [pool.num_blocks for pool in pools], pools[0].block_size, math.inf)
        found = figures(self.logits[: len(tokens)], rounded, tokens)
        return (
            f"quantize {self.scheme}: mean KL {found.mean_kl:.5f} nats to the checkpoint's weights, "
            f"same most likely token {found.agreement:.1%}, "
            f"perplexity {found.perplexity:.3f} (checkpoint {found.exact_perplexity:.3f}); "
            f"{found.positions} positions of a built-in English text"
        )


def exact_answers(model: Model, config: EngineConfig, available: int) -> ExactAnswers | None:
    """Run the text on the weights as the checkpoint has them. None: not asked for."""
    assert isinstance(model.weights, RoundedWeights)
    scheme = model.weights.scheme
    if config.model.quantize_check == 0:
        return None
    if model.graph.pools:
        return ExactAnswers(scheme=scheme, reason="a model of embeddings draws no tokens")
    tokens = build_tokenizer(model.text).encode(CALIBRATION_TEXT)
    tokens = [token for token in tokens if token < model.vocab_size]
    tokens = tokens[: min(config.model.quantize_check, model.max_position)]
    if len(tokens) < 2:
        return ExactAnswers(scheme=scheme, reason="the text has no tokens of this vocabulary")
    plain = replace(model, weights=model.weights.unrounded)
    small = replace(
        config,
        model=replace(config.model, quantize=None, max_model_len=len(tokens)),
        scheduler=replace(config.scheduler, max_running=1, max_step_tokens=_CHUNK),
        executor=replace(config.executor, packed_cache="off"),
        kv_memory=None,
    )
    try:
        plan = plan_memory(plain, small, available - 4 * len(tokens) * model.vocab_size)
    except DoesNotFit as error:
        need = error.message.split(";")[0]
        return ExactAnswers(scheme=scheme, reason=f"{need} ({format_bytes(available)} available)")
    executor = make_executor(fuse(plain.graph), plain.weights, small.executor)
    try:
        pools = plan.pools()
        executor.allocate_kv(pools)
        blocks = [pool.num_blocks for pool in pools]
        logits = _logits(executor, tokens, blocks, config.block_size, time.monotonic() + _SECONDS)
    finally:
        executor.close()
    return ExactAnswers(scheme=scheme, tokens=tokens[: len(logits)], logits=logits)


def figures(exact: Floats, rounded: Floats, tokens: Sequence[int]) -> Figures:
    """Compare logits [tokens, vocabulary] row by row, in float64."""
    kl, same, losses = [], [], []
    for position, (one, other) in enumerate(zip(exact, rounded, strict=True)):
        p, q = _log_softmax(one), _log_softmax(other)
        kl.append(float((np.exp(p) * (p - q)).sum()))
        same.append(p.argmax() == q.argmax())
        if position + 1 < len(tokens):
            losses.append((-p[tokens[position + 1]], -q[tokens[position + 1]]))
    exact_loss, rounded_loss = np.mean(losses, axis=0)
    return Figures(
        positions=len(kl),
        mean_kl=float(np.mean(kl)),
        agreement=float(np.mean(same)),
        perplexity=math.exp(rounded_loss),
        exact_perplexity=math.exp(exact_loss),
    )


def _log_softmax(logits: Floats) -> npt.NDArray[np.float64]:
    row = logits.astype(np.float64)
    row -= row.max()
    shifted: npt.NDArray[np.float64] = row - np.log(np.exp(row).sum())
    return shifted


def _logits(
    executor: Executor, tokens: Sequence[int], num_blocks: Sequence[int], block_size: int, until: float
) -> Floats:
    """Of as many tokens as there is time for, at least one chunk."""
    needed = -(-len(tokens) // block_size)
    tables = tuple(tuple(block % blocks for block in range(needed)) for blocks in num_blocks)
    rows = []
    for step, begin in enumerate(range(0, len(tokens), _CHUNK)):
        part = tokens[begin : begin + _CHUNK]
        row = PlanRow(
            sequence=SequenceId(0),
            tokens=part,
            start=begin,
            block_tables=tables,
            num_outputs=len(part),
            options=RowOptions(),
        )
        rows.append(executor.logits(StepPlan(step=step, rows=(row,)))[0])
        if time.monotonic() > until:
            break
    return np.concatenate(rows)

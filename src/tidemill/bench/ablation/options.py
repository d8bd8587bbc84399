"""What an ablation is made from, as the command line and Python take it: flat fields with their texts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.bench.sweep.knee import KneeSearch
from tidemill.core.errors import ConfigError

if TYPE_CHECKING:
    from tidemill.bench.ablation.load import AblationLoad
    from tidemill.bench.traces.row import TraceRow
    from tidemill.models.shape import ModelShape

__all__ = ["STEP_TOKENS", "AblationOptions"]

STEP_TOKENS = 128
"""Step budget of an ablation unless one is named. What a step takes is a gap in every answer, and a small machine's
step of 512 tokens is a gap that the default objectives do not allow."""
_SHARED = "the prompt that all have"


@dataclass(frozen=True, slots=True, kw_only=True)
class AblationOptions:
    """The load, the objectives and the search."""

    trace: str = "azure-conv-2023"
    """A trace file in any format that tidemill trace reads, or the name of a model of a trace: one that comes with
    the package, or a file that tidemill trace fit wrote."""
    requests: int = 120
    """Requests of each measurement: the first of the trace."""
    shrink: float = 0.25
    """Lengths of prompts and answers are multiplied by this, to suit the machine."""
    shared_tokens: int = 0
    """Tokens put before every prompt, the same for all: a system prompt, which published traces leave out."""
    asked_tokens: int | None = None
    """Tokens that each request asks for, though its answer ends before; default: the longest answer's."""
    slo: str = "ttft:p99<2s; itl:p95<150ms"
    """The objectives of each request."""
    first_rate: float = 2.0
    """Requests per second to begin each search with."""
    precision: float = 1.1
    """A search ends when the lowest rate that is too high is at most so many times the highest that is not."""
    pairs: int | None = None
    """Runs of each pair at the twin's rate, in alternation; default: 2, simulated 1."""
    seed: int = 0
    """Of all that is drawn: the same seed gives the same load."""

    def load(self, shape: ModelShape, *, longest: int) -> AblationLoad:
        """The load for a model whose sequences have ``longest`` tokens at most. Raises ConfigError naming the option,
        and what reading a trace raises."""
        # Imported here: whoever asks for --help needs neither models nor traces.
        from tidemill.bench.ablation.load import AblationLoad, shrunk
        from tidemill.bench.load.prompts import IdPrompts
        from tidemill.bench.load.request import DEFAULT_IDS

        for name, least in (("requests", 2), ("shared_tokens", 0), ("asked_tokens", 1), ("pairs", 1)):
            if (value := getattr(self, name)) is not None and value < least:
                raise ConfigError(f"{name} must be at least {least}, not {value}", param=name)
        if self.shared_tokens >= longest // 2:
            raise ConfigError(f"shared_tokens must be below {longest // 2} for this model", param="shared_tokens")
        made = shrunk(self._rows(), self.shrink, longest=longest - self.shared_tokens)
        rows = [_with_shared(row, self.shared_tokens) for row in made]
        most = max(row.output_tokens for row in rows)
        room = longest - max(row.prompt_tokens for row in rows)
        low, high = DEFAULT_IDS
        vocab = shape.graph.vocab_size
        prompts = IdPrompts(range(min(low, vocab // 2), min(high, vocab)), seed=self.seed)
        return AblationLoad(rows=rows, prompts=prompts, asked=min(self.asked_tokens or most, room))

    def search(self) -> KneeSearch:
        """A fresh search. Raises ConfigError."""
        if not self.first_rate > 0:
            raise ConfigError(f"first_rate must be above 0, not {self.first_rate:g}", param="first_rate")
        return KneeSearch(
            start=self.first_rate, least=self.first_rate / 64, most=self.first_rate * 512, precision=self.precision
        )

    def _rows(self) -> list[TraceRow]:
        from tidemill.bench.traces.cut import sliced
        from tidemill.bench.traces.formats import load_trace
        from tidemill.bench.traces.model import load_model, packaged
        from tidemill.bench.traces.synth import synthesised

        if self.trace in packaged() or _is_model(self.trace):
            model = load_model(self.trace)
            return list(synthesised(model, seed=self.seed, count=self.requests, ticks=False).rows)
        return list(sliced(load_trace(self.trace), count=self.requests).rows)


def _is_model(trace: str) -> bool:
    """True of a file that holds a model of a trace and no trace: one object, over several lines."""
    path = Path(trace)
    return path.suffix == ".json" and path.is_file() and path.read_bytes()[:2] == b"{\n"


def _with_shared(row: TraceRow, tokens: int) -> TraceRow:
    from tidemill.bench.traces.row import Segment

    if not tokens:
        return row
    return replace(row, prompt_tokens=row.prompt_tokens + tokens, prefix=(Segment(_SHARED, tokens), *row.prefix))

"""The rows of the table, and what is wanted of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tidemill.bench.work import Work, decode_work, prefill_work

__all__ = ["Row", "Served", "Wanted", "served_rows", "step_rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A floor and a goal, each of one figure of a row: ``ratio``, ``roof_share`` or ``ours``."""

    floor: float | None = None
    goal: float | None = None
    floor_of: str = "ratio"
    goal_of: str = "ratio"
    against: str | None = None
    """The engine that floor and goal of the ratio are against; None: the fastest of all. With one named, the floor
    also asks that no other engine is faster."""
    lower: bool = False
    """Whether smaller figures of ``ours`` are better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Steps of one shape of a model."""

    model: str
    work: Work
    wanted: Wanted

    @property
    def name(self) -> str:
        return f"{self.work.name} {self.model}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Callers of a server, each of which sends its next request when its answer has ended."""

    title: str
    clients: int
    requests: int
    prompt_tokens: int
    shared_tokens: int
    max_tokens: int


_LLAMA = "llama.cpp"


def step_rows() -> Iterator[Row]:
    """Rows of the executor."""
    prefill, one, many = prefill_work(512), decode_work(1, 256), decode_work(16, 256)
    reads = {"goal": 0.85, "goal_of": "roof_share"}

    def row(model: str, work: Work, floor: float | None = None, **others: object) -> Row:
        return Row(model=model, work=work, wanted=Wanted(floor=floor, **others))  # type: ignore[arg-type]

    yield row("smollm2-q4_0", prefill, 1.8, goal=2.5, against=_LLAMA)
    yield row("smollm2-q8_0", prefill, 1.5, goal=2.0)
    yield row("smollm2-f16", prefill, 1.2, goal=1.4)
    yield row("smollm2-q4_0", one, 1.4, against=_LLAMA, **reads)
    yield row("smollm2-q4_0", many, 2.0, goal=3.0, against=_LLAMA)
    yield row("smollm2-q4_0", decode_work(1, 4096), 1.5, goal=2.5)
    yield row("smollm2-q4_0", decode_work(16, 2048), 1.5, goal=2.5)
    for weights in ("q4_0", "q4_k_m", "q8_0"):
        model = f"qwen-1.5b-{weights}"
        yield row(model, prefill, 1.6, goal=2.2)
        yield row(model, one, 1.1, **reads)
        yield row(model, many, 2.0, goal=3.0)
    yield row("gemma-3-270m", one, 0.80, floor_of="roof_share", **reads)
    for work in (prefill, one, many):
        yield row("default", work)


def served_rows() -> Iterator[Served]:
    """Rows of the server."""
    yield Served(title="served 256/128", clients=16, requests=32, prompt_tokens=256, shared_tokens=0, max_tokens=128)
    yield Served(
        title="served 512 shared + 64/64", clients=16, requests=64, prompt_tokens=576, shared_tokens=512, max_tokens=64
    )

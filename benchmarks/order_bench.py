"""What the orders of the queue bring, on a simulated engine: the same figures on every machine, in seconds.

    python benchmarks/order_bench.py                  # all of it
    python benchmarks/order_bench.py --seed 1 --trace azure-conv-2023

The scheduler, the blocks and the prefix cache are the real ones; a step takes what ``STEP`` says. Load is the rate over
the highest one that the engine could keep up with under first come, first served: the number of requests over the time
in which it answers all of them when they come at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tidemill.bench.ablation.load import AblationLoad, shrunk
from tidemill.bench.figures.latencies import samples
from tidemill.bench.figures.percentiles import Pool
from tidemill.bench.load.prompts import IdPrompts
from tidemill.bench.load.request import LoadRequest
from tidemill.bench.load.run import Run
from tidemill.bench.simulation.simulated_run import simulate
from tidemill.bench.traces.model import load_model
from tidemill.bench.traces.synth import synthesised
from tidemill.core.config import SchedulerConfig
from tidemill.scheduling.kv.space import KvGroupSpace, KvSpace

__all__ = ["Bench", "Figures", "step_seconds"]

TRACE: Final = "burstgpt-conv"
REQUESTS: Final = 600
SHRINK: Final = 0.25
LONGEST: Final = 2048


def step_seconds(rows: Iterable[tuple[int, int, int]]) -> float:
    """About what SmolLM2-135M in 4 bits takes on two processors: weights stream in 2 ms, a token takes 0.35 ms, a row's
    draw 0.1 ms, and 1000 positions of context 0.25 ms."""
    seconds = 0.002
    for start, tokens, outputs in rows:
        seconds += 0.00035 * tokens + 0.0001 * outputs + 0.25e-6 * tokens * (start + tokens / 2)
    return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of one run, in seconds."""

    ttft_mean: float
    ttft_p99: float
    itl_p99: float
    longest: float
    """The longest wait for a first token."""
    failed: int

    @classmethod
    def of(cls, run: Run, keep: Sequence[int] | None = None) -> Figures:
        """``keep``: of these requests only."""
        records = [one for one in run.records if keep is None or one.index in keep]
        whole = [one for one in records if not one.failed]
        ttft = Pool.of([samples(one, "ttft") for one in whole])
        itl = Pool.of([samples(one, "itl") for one in whole])
        return cls(
            ttft_mean=ttft.mean() or 0.0,
            ttft_p99=ttft.percentile(99) or 0.0,
            itl_p99=itl.percentile(99) or 0.0,
            longest=max((each for one in whole for each in samples(one, "ttft")), default=0.0),
            failed=len(records) - len(whole),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """One load and one engine."""

    trace: str = TRACE
    requests: int = REQUESTS
    seed: int = 0
    blocks: int = 2048
    config: SchedulerConfig = field(default_factory=lambda: SchedulerConfig(max_step_tokens=128, max_waiting=10**6))

    def load(self) -> AblationLoad:
        """The requests, from a model of a trace."""
        rows = synthesised(load_model(self.trace), seed=self.seed, count=self.requests, ticks=False).rows
        rows = [replace(row, session=None, turn=0, think=None) for row in shrunk(rows, SHRINK, longest=LONGEST)]
        return AblationLoad(rows=rows, prompts=IdPrompts(range(1000, 30000), seed=self.seed), asked=LONGEST // 4)

    def run(self, requests: Sequence[LoadRequest], *, told: bool = False, **settings: Any) -> Run:
        """Requests on an engine with some settings."""
        return simulate(
            requests,
            self.load().answers,
            config=replace(self.config, **settings),
            space=KvSpace([KvGroupSpace(num_blocks=self.blocks, block_size=16)]),
            step_seconds=step_seconds,
            told=told,
        )

    def capacity(self) -> float:
        """Requests per second."""
        at_once = [replace(one, due=0.0) for one in self.load().at(1.0)]
        return self.requests / self.run(at_once).seconds

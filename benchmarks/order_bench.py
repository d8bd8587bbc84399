"""What orders and paced steps bring, on a simulated engine: the same figures on every machine, in seconds.

    python benchmarks/order_bench.py
    python benchmarks/order_bench.py --seed 1 --requests 1000

The scheduler, the blocks and the prefix cache are the real ones; a step takes what ``step_seconds`` says. The first two
are there live as well: ``python -m benchmarks.order``. Load is the
rate over the highest one that the engine could keep up with first come, first served: the number of requests over the
time in which it answers all of them when they come at once.

    shortest   a bursty trace at 85 % load, first come first served and shortest first with true lengths
    tenants    a tenant with a tenth of the highest rate alone, and beside one that sends ten times as much
    prefix     twelve system prompts, with memory for a few of them: tokens of prompts that the cache had
    pace       requests within ttft:p99<2s and itl:p95<100ms, with steps of fixed budgets and with paced ones
"""

from __future__ import annotations

import argparse
import json
import random
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from tidemill.bench.ablation.load import AblationLoad, shrunk
from tidemill.bench.figures.latencies import samples
from tidemill.bench.figures.percentiles import Pool
from tidemill.bench.figures.slo import parse_slo
from tidemill.bench.load.prompts import IdPrompts
from tidemill.bench.load.record import RequestRecord
from tidemill.bench.load.request import LoadRequest, Prompt
from tidemill.bench.load.run import Run
from tidemill.bench.simulation.simulated_run import simulate
from tidemill.bench.traces.model import load_model
from tidemill.bench.traces.synth import synthesised
from tidemill.core.config import SchedulerConfig
from tidemill.scheduling.kv.space import KvGroupSpace, KvSpace

__all__ = [
    "BURSTY",
    "LOAD",
    "STEADY",
    "Bench",
    "Figures",
    "longest_overtake",
    "pace",
    "prefixes",
    "shortest",
    "step_seconds",
    "tenants",
    "two_tenants",
]

BURSTY: Final = "burstgpt-conv"
STEADY: Final = "azure-conv-2023"
LOAD: Final = 0.85
SHRINK: Final = 0.25
LONGEST: Final = 2048
OBJECTIVES: Final = "ttft:p99<2s; itl:p95<100ms"


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
    overtake: float
    """The most seconds that lay between two of whom the later one had its first token before."""
    within: float
    """The share of requests within the objectives."""
    failed: int

    @classmethod
    def of(cls, run: Run, tenant: str | None = None) -> Figures:
        """``tenant``: of its requests only."""
        records = [one for one in run.records if tenant is None or one.tenant == tenant]
        whole = [one for one in records if not one.failed]
        ttft = Pool.of([samples(one, "ttft") for one in whole])
        itl = Pool.of([samples(one, "itl") for one in whole])
        slo = parse_slo(OBJECTIVES)
        return cls(
            ttft_mean=ttft.mean() or 0.0,
            ttft_p99=ttft.percentile(99) or 0.0,
            itl_p99=itl.percentile(99) or 0.0,
            longest=max((each for one in whole for each in samples(one, "ttft")), default=0.0),
            overtake=longest_overtake(whole),
            within=sum(map(slo.met, records)) / len(records),
            failed=len(records) - len(whole),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """One load and one engine."""

    trace: str
    requests: int
    seed: int = 0
    config: SchedulerConfig = field(default_factory=lambda: SchedulerConfig(max_step_tokens=128, max_waiting=10**6))

    def load(self) -> AblationLoad:
        """The requests, each by itself: of conversations the turns come when they came in the trace."""
        rows = synthesised(load_model(self.trace), seed=self.seed, count=self.requests, ticks=False).rows
        rows = [replace(row, session=None, turn=0, think=None) for row in shrunk(rows, SHRINK, longest=LONGEST)]
        return AblationLoad(rows=rows, prompts=IdPrompts(range(1000, 30000), seed=self.seed), asked=LONGEST // 4)

    def answers(self, requests: Sequence[LoadRequest]) -> dict[int, int]:
        """Tokens of each answer, by index; more requests than the load has begin again with its first."""
        answers = self.load().answers
        return {one.index: answers[one.index % self.requests] for one in requests}

    def told(self, requests: Sequence[LoadRequest]) -> list[LoadRequest]:
        """The same requests, and they say how long their answers will be."""
        answers = self.answers(requests)
        return [replace(one, expected_tokens=answers[one.index]) for one in requests]

    def run(self, requests: Sequence[LoadRequest], **settings: Any) -> Run:
        """Requests on an engine with some settings."""
        return simulate(
            requests,
            self.answers(requests),
            config=replace(self.config, **settings),
            space=KvSpace([KvGroupSpace(num_blocks=2048, block_size=16)]),
            step_seconds=step_seconds,
        )

    def capacity(self) -> float:
        """Requests per second."""
        return self.requests / self.run([replace(one, due=0.0) for one in self.load().at(1.0)]).seconds


def shortest(requests: int, seed: int, patience: float = 30.0) -> dict[str, Figures]:
    """First come first served, and shortest first with estimated and with true lengths."""
    bench = Bench(trace=BURSTY, requests=requests, seed=seed)
    load = bench.load().at(LOAD * bench.capacity())
    found = {"fcfs": Figures.of(bench.run(load))}
    for name, asked in (("srf, estimated", load), ("srf, true", bench.told(load))):
        found[name] = Figures.of(bench.run(asked, order="srf", order_patience=patience))
    return found


def tenants(requests: int, seed: int, order: str, *, share: float = 0.1, **settings: Any) -> dict[int, Figures]:
    """The figures of a tenant with a share of the highest rate, by how many times as much another one sends."""
    bench = Bench(trace=STEADY, requests=requests, seed=seed)
    rate = share * bench.capacity()
    loads = {times: two_tenants(bench, rate=rate, count=requests // 10, times=times) for times in (0, 10)}
    return {times: Figures.of(bench.run(load, order=order, **settings), "one") for times, load in loads.items()}


def two_tenants(bench: Bench, *, rate: float, count: int, times: float) -> list[LoadRequest]:
    """So many requests of one tenant, the same whatever ``times`` is, and of another one ``times`` as many a second
    meanwhile."""
    numbers = random.Random(bench.seed)
    dues = _arrivals(numbers, rate, "one", count, None)
    if times:
        dues += _arrivals(numbers, rate * times, "other", None, dues[-1][0])
    base = bench.load().at(1.0)
    load = [
        replace(base[index % bench.requests], index=index, due=due, tenant=name)
        for index, (due, name) in enumerate(dues)
    ]
    return sorted(load, key=lambda one: one.due)


def prefixes(requests: int, seed: int, patience: float) -> dict[str, float]:
    """By order, the share of prompt tokens that came from the cache; requests of twelve groups that begin alike come
    faster than they can be served, in no order."""
    numbers = random.Random(seed)
    beginnings = [[numbers.randrange(1000, 30000) for _ in range(256)] for _ in range(12)]
    load = []
    for index in range(requests):
        ids = [*numbers.choice(beginnings), *(numbers.randrange(1000, 30000) for _ in range(32))]
        prompt = Prompt(ids=array("i", ids), tokens=len(ids))
        load.append(LoadRequest(index=index, prompt=prompt, max_tokens=16, due=0.02 * index))
    found = {}
    for order in ("fcfs", "prefix"):
        config = SchedulerConfig(max_step_tokens=128, max_waiting=10**6, order=order, order_patience=patience)
        space = KvSpace([KvGroupSpace(num_blocks=96, block_size=16)])
        records = simulate(load, None, config=config, space=space, step_seconds=step_seconds).records
        found[order] = sum(one.cached_tokens or 0 for one in records) / sum(one.prompt.tokens for one in load)
    return found


def pace(requests: int, seed: int, rate: float) -> dict[str, Figures]:
    """Fixed budgets, and one that follows from a target of 80 ms between tokens."""
    bench = Bench(trace=STEADY, requests=requests, seed=seed)
    load = bench.load().at(rate)
    found = {f"{tokens} tokens": Figures.of(bench.run(load, max_step_tokens=tokens)) for tokens in (512, 256, 128, 64)}
    found["80 ms"] = Figures.of(bench.run(load, max_step_tokens=512, itl_target=0.08))
    return found


def longest_overtake(records: Iterable[RequestRecord]) -> float:
    """Seconds; 0 if first tokens came in the order of the requests."""
    found, latest = 0.0, 0.0
    for one in sorted((one for one in records if one.first is not None), key=lambda one: one.first or 0.0):
        latest = max(latest, one.sent or 0.0)
        found = max(found, latest - (one.sent or 0.0))
    return found


def _arrivals(
    numbers: random.Random, rate: float, tenant: str, count: int | None, end: float | None
) -> list[tuple[float, str]]:
    """Poisson arrivals: so many, or up to a time."""
    found: list[tuple[float, str]] = []
    now = 0.0
    while count is None or len(found) < count:
        now += numbers.expovariate(rate)
        if end is not None and now > end:
            break
        found.append((now, tenant))
    return found


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    found: dict[str, Any] = {"shortest": shortest(asked.requests, asked.seed)}
    for order in ("fcfs", "fair", "fair,srf"):
        found[f"tenants, {order}"] = tenants(asked.requests, asked.seed, order)
    for rate in (4.0, 5.0):
        found[f"pace, {rate:g} requests/s"] = pace(asked.requests // 2, asked.seed, rate)
    shares = prefixes(asked.requests, asked.seed, 30.0)
    print("prefix          " + "  ".join(f"{order} {share:.1%} cached" for order, share in shares.items()))
    for name, rows in found.items():
        print(name)
        for row, figures in rows.items():
            print(f"    {row!s:16}" + "  ".join(f"{key} {value:.4g}" for key, value in asdict(figures).items()))
    print(json.dumps({name: {str(k): asdict(v) for k, v in rows.items()} for name, rows in found.items()}))


if __name__ == "__main__":
    _main()

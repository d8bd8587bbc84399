"""Engines measured in alternation on one load, each at the settings that a short trial found best.

1  trials: each engine with each of its settings for itself, a short closed loop; all are kept in the results
2  rounds: ours and the best of each engine take turns, with the same lengths and prompts of their own
3  pressed trials: where there are objectives, the settings that were not far behind are tried once more, at a rate near
   what the engine can do: what is fast for a few callers may miss objectives when requests come as they like
4  rates: the highest rate of each engine's best setting is searched, in turns
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Final

from tidemill.bench.comparison.ratios import Round
from tidemill.bench.comparison.verdict import comparison_values
from tidemill.bench.hope import GaveUp
from tidemill.bench.job import Done, Job
from tidemill.bench.load.options import ServerOptions
from tidemill.bench.peers.child import Child
from tidemill.bench.peers.installed import OURS, Peer
from tidemill.bench.sweep.attempt import Attempt, at_rate, attempt_of, given_up
from tidemill.bench.sweep.knee import KneeSearch
from tidemill.bench.sweep.rates import Sweep, Try, sweep_in_turns, sweep_values
from tidemill.core.errors import SetupError, TidemillError

__all__ = ["Contest", "Trial"]

_SEEDS: Final = 1000
"""From one measurement's prompts to the next one's."""
_PRESSED: Final = 0.7
"""Of the rate that an engine answered in its closed loop: the rate of its pressed trials."""
_NOT_FAR: Final = 0.7
"""Of an engine's fastest closed loop: settings slower than that are not tried again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One engine with one of its settings."""

    peer: Peer
    tokens_per_second: float | None
    """None: it did not do it."""
    requests_per_second: float | None = None
    goodput: float | None = None
    """Output tokens per second of requests within the objectives, where there are any."""
    pressed: Attempt | None = None
    """At a rate near what the engine can do."""
    reason: str = ""
    """Why not."""


@dataclass(slots=True, kw_only=True)
class Contest:
    """What is measured."""

    peers: Sequence[Peer]
    """Ours and the others', each with each of its settings."""
    closed: Job
    """The closed loop of a round."""
    rates: Job | None = None
    """Where there are objectives: the load of an attempt at a rate."""
    search: Callable[[], KneeSearch] | None = None
    rounds: int = 3
    trial_requests: int = 8
    tell: Callable[[str], None] = lambda _line: None

    async def run(self) -> dict[str, Any]:
        """Everything, as plain values."""
        trials = [await self._tried(number, peer) for number, peer in enumerate(self.peers)]
        best = _best(trials)
        if not any(peer.engine == OURS for peer in best):
            raise SetupError(f"tidemill itself cannot do it: {trials[0].reason}")
        unable: dict[str, str] = {}
        async with AsyncExitStack() as stack:
            children = await _started(best, stack, unable) if self.rounds else []
            rounds = await self._alternated(children)
        pressed: Sequence[Peer] = ()
        rates: dict[str, Any] = {}
        if self.rates is not None:
            trials = [await self._pressed(number, trial, trials) for number, trial in enumerate(trials)]
            pressed = _best(trials)
            async with AsyncExitStack() as stack:
                rates = await self._searched(await _started(pressed, stack, unable))
        return {
            "trials": [
                {
                    "engine": trial.peer.engine,
                    "settings": trial.peer.settings,
                    "tokens_per_second": trial.tokens_per_second,
                    "goodput_tokens_per_second": trial.goodput,
                    "pressed_rate": trial.pressed.rate if trial.pressed else None,
                    "pressed_share": trial.pressed.share if trial.pressed else None,
                    "reason": trial.reason,
                    "chosen": trial.peer in best,
                    "chosen_for_rates": trial.peer in pressed,
                }
                for trial in trials
            ],
            "unable": unable,
            "rounds": rounds,
            "rates": rates,
        }

    async def _tried(self, number: int, peer: Peer) -> Trial:
        job = replace(
            self.closed,
            load=replace(self.closed.load, requests=self.trial_requests),
            prompt_seed=_SEEDS * (number + 1),
            progress=False,
        )
        try:
            async with Child(peer.command, ready=peer.ready, environment=peer.environment) as child:
                done = await _at(child, job)
        except TidemillError as error:
            trial = Trial(peer=peer, tokens_per_second=None, reason=error.message)
        else:
            failed = done.values["requests"]["errors"]
            trial = Trial(
                peer=peer,
                tokens_per_second=None if failed else done.values["rates"]["output_tokens_per_second"],
                requests_per_second=None if failed else done.values["rates"]["requests_per_second"],
                goodput=done.values["slo"]["goodput_tokens_per_second"] if done.values["slo"] else None,
                reason=failed[0]["message"] if failed else "",
            )
        shown = f"{trial.tokens_per_second:.4g} tokens/s" if trial.tokens_per_second else trial.reason
        self.tell(f"trial of {peer.name}: {shown}")
        return trial

    async def _pressed(self, number: int, trial: Trial, trials: Sequence[Trial]) -> Trial:
        """The trial with what came of it at the engine's rate; as it is if it need not be tried again."""
        assert self.rates is not None
        own = [one for one in trials if one.peer.engine == trial.peer.engine and one.tokens_per_second]
        fastest = max((one.tokens_per_second or 0.0 for one in own), default=0.0)
        if len(own) < 2 or (trial.tokens_per_second or 0.0) < _NOT_FAR * fastest:
            return trial
        rate = _PRESSED * max(one.requests_per_second or 0.0 for one in own)
        job = replace(at_rate(self.rates, rate, _SEEDS * (200 + number)), needed_share=None, progress=False)
        peer = trial.peer
        try:
            async with Child(peer.command, ready=peer.ready, environment=peer.environment) as child:
                attempt = attempt_of(rate, (await _at(child, job)).values)
        except TidemillError as error:
            return replace(trial, reason=error.message)
        self.tell(f"{peer.name} at {rate:.4g} requests/s: {attempt.share:.1%} within the objectives")
        return replace(trial, pressed=attempt)

    async def _alternated(self, children: Sequence[tuple[Peer, Child]]) -> list[dict[str, Any]]:
        runs: list[list[Done]] = [[] for _ in children]
        for number in range(self.rounds):
            for side, (peer, child) in enumerate(children):
                load = replace(self.closed.load, seed=self.closed.load.seed + number)
                job = replace(self.closed, load=load, prompt_seed=_SEEDS * (100 + number * len(children) + side))
                runs[side].append(await _at(child, job))
                rate = runs[side][-1].values["rates"]["output_tokens_per_second"]
                self.tell(f"round {number + 1}, {peer.name}: {rate or 0:.4g} tokens/s")
        return [
            _rounds_row(peer, own, runs[0] if side else None)
            for side, ((peer, _), own) in enumerate(zip(children, runs, strict=True))
        ]

    async def _searched(self, children: Sequence[tuple[Peer, Child]]) -> dict[str, Any]:
        if self.rates is None or self.search is None:
            return {}
        sweeps = [Sweep(search=self.search(), attempt=_attempt(self.rates, child)) for _, child in children]

        def tell(place: int, attempt: Attempt) -> None:
            kept = f"under {attempt.share:.1%}" if attempt.gave_up else f"{attempt.share:.1%}"
            self.tell(f"{children[place][0].engine} at {attempt.rate:.4g} requests/s: {kept} within the objectives")

        await sweep_in_turns(sweeps, on_attempt=tell)
        return {peer.engine: sweep_values(sweep) for (peer, _), sweep in zip(children, sweeps, strict=True)}


async def _started(peers: Sequence[Peer], stack: AsyncExitStack, unable: dict[str, str]) -> list[tuple[Peer, Child]]:
    """Their servers, which end with the stack; why one does not start goes into ``unable``."""
    children: list[tuple[Peer, Child]] = []
    for peer in peers:
        try:
            child = Child(peer.command, ready=peer.ready, environment=peer.environment)
            children.append((peer, await stack.enter_async_context(child)))
        except TidemillError as error:
            unable[peer.engine] = error.message
    return children


def _attempt(job: Job, child: Child) -> Try:
    async def attempt(rate: float, number: int) -> Attempt:
        try:
            done = await _at(child, at_rate(job, rate, 10 * _SEEDS + number))
        except GaveUp as why:
            return given_up(rate, why)
        return attempt_of(rate, done.values)

    return attempt


async def _at(child: Child, job: Job) -> Done:
    return await job.at_server(ServerOptions(url=child.url), "peer")


def _best(trials: Sequence[Trial]) -> list[Peer]:
    """Of each engine that did it, the setting with the most requests within the objectives when it was pressed, or else
    with the most tokens within them, or else with the most tokens."""

    def score(trial: Trial) -> tuple[float, float, float]:
        return trial.pressed.share if trial.pressed else 0.0, trial.goodput or 0.0, trial.tokens_per_second or 0.0

    best: dict[str, Trial] = {}
    for trial in trials:
        engine = trial.peer.engine
        if trial.tokens_per_second is not None and (engine not in best or score(trial) > score(best[engine])):
            best[engine] = trial
    return [trial.peer for trial in best.values()]


def _rounds_row(peer: Peer, own: Sequence[Done], ours: Sequence[Done] | None) -> dict[str, Any]:
    """Medians over rounds, and ours compared with it."""

    def over(*path: str) -> float | None:
        found = []
        for done in own:
            value: Any = done.values
            for name in path:
                value = None if value is None else value[name]
            if value is not None:
                found.append(float(value))
        return median(found) if found else None

    row: dict[str, Any] = {
        "engine": peer.engine,
        "settings": peer.settings,
        "tokens_per_second": over("rates", "output_tokens_per_second"),
        "requests_per_second": over("rates", "requests_per_second"),
        "ttft_p50_ms": over("ttft_ms", "p50"),
        "ttft_p99_ms": over("ttft_ms", "p99"),
        "itl_mean_ms": over("itl_ms", "mean"),
        "itl_p95_ms": over("itl_ms", "p95"),
        "cached_share": over("tokens", "cached_share"),
        "failed": sum(done.values["requests"]["failed"] for done in own),
        "complaints": [complaint for done in own for complaint in done.values["complaints"]],
    }
    if ours:
        rounds = [
            Round(a=a.run.records, b=b.run.records, a_seconds=a.run.seconds, b_seconds=b.run.seconds)
            for a, b in zip((d.measurement for d in own), (d.measurement for d in ours), strict=True)
        ]
        row["ours_over_it"] = comparison_values((peer.engine, "tidemill"), rounds)["ratios"]
    return row

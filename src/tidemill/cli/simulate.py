"""``tidemill simulate``: routing policies on replicas that are modelled, in seconds instead of hours."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemill.cli.options import DebugOption, JsonOption
from tidemill.core.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from tidemill.bench.load.request import LoadRequest
    from tidemill.bench.simulation.fleet import FleetRun

__all__ = ["simulate"]

EPILOG = """Examples:

\b
tidemill simulate
tidemill simulate --load hot-prefix --policy round-robin --policy prefix-aware --policy predicted-seconds
tidemill simulate --trace load.jsonl --replicas 16 --policy predicted-seconds
"""
_COMPARED = ("round-robin", "predicted-seconds")


def simulate(
    *,
    load: Annotated[
        list[str] | None,
        typer.Option(
            "--load",
            metavar="NAME",
            help="system-prompt, conversations, hot-prefix, slow-replica or idle, several times. [default: all]",
        ),
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option(
            "--trace",
            metavar="FILE",
            help="A trace instead of a named load, in any format that `tidemill trace` reads.",
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            metavar="NAME",
            help="Routing policies to compare, several times. [default: round-robin, predicted-seconds]",
        ),
    ] = None,
    replicas: Annotated[int, typer.Option("--replicas", metavar="N", min=1, max=1000, help="How many.")] = 4,
    requests: Annotated[int, typer.Option("--requests", metavar="N", min=1, help="How many, of a named load.")] = 600,
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate",
            metavar="X",
            min=0.01,
            help="Requests per second, of a named load. [default: the load's, for four replicas]",
        ),
    ] = None,
    step_seconds: Annotated[
        float, typer.Option("--step-seconds", metavar="X", min=1e-6, help="What a step takes at least.")
    ] = 0.008,
    token_seconds: Annotated[
        float,
        typer.Option("--token-seconds", metavar="X", min=0, help="What each token of a step takes besides."),
    ] = 5e-5,
    row_seconds: Annotated[
        float,
        typer.Option("--row-seconds", metavar="X", min=0, help="What each sequence in a step takes besides."),
    ] = 2e-4,
    kv_tokens: Annotated[
        int,
        typer.Option("--kv-tokens", metavar="N", min=4096, help="Tokens that a replica's block cache holds."),
    ] = 200_000,
    slow: Annotated[
        float | None,
        typer.Option(
            "--slow", metavar="X", min=0.01, help="How many times slower the first replica is. [default: the load's]"
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Same seed, same run.")] = 1,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 (read by main)
) -> None:
    """Put a load on modelled replicas behind the gateway's real router, and compare policies.

    Replicas have the engine's own scheduler and block cache; a step takes what three figures say. Load is the requests
    in flight at a replica on average, and busy the part of the time that it was in steps.
    """
    from tidemill.bench.simulation.fleet import Fleet
    from tidemill.bench.simulation.modelled_replica import ModelledReplica
    from tidemill.gateway.routing.policies import POLICIES

    for name in policy or ():
        if name not in POLICIES:
            raise ConfigError(f"policy must be one of {', '.join(POLICIES)}, not {name!r}", param="policy")
    found = []
    for name, asked, factor in _loads(load, trace, count=requests, rate=rate, seed=seed):
        for chosen in policy or _COMPARED:
            first = factor if slow is None else slow
            engines = [
                ModelledReplica(
                    step_seconds=step_seconds,
                    token_seconds=token_seconds,
                    row_seconds=row_seconds,
                    kv_tokens=kv_tokens,
                    slow=first if number == 0 else 1.0,
                ).engine()
                for number in range(replicas)
            ]
            run = Fleet(engines, POLICIES[chosen](), seed=seed).run(asked)
            found.append(_figures(name, chosen, run))
            if not json:
                _print_line(found[-1], header=len(found) == 1)
    print(jsonlib.dumps({"replicas": replicas, "seed": seed, "runs": found}))


def _loads(
    names: list[str] | None, trace: str | None, *, count: int, rate: float | None, seed: int
) -> Iterator[tuple[str, list[LoadRequest], float]]:
    """(name, requests, how many times slower the first replica is)."""
    from pathlib import Path

    from tidemill.bench.simulation.fleet_loads import FLEET_LOADS, fleet_load

    if trace is not None:
        yield Path(trace).name, _of_trace(Path(trace)), 1.0
        return
    for name in names or FLEET_LOADS:
        if name not in FLEET_LOADS:
            raise ConfigError(f"load must be one of {', '.join(FLEET_LOADS)}, not {name!r}", param="load")
        load = FLEET_LOADS[name]
        yield name, fleet_load(load, count=count, rate=rate, seed=seed), load.slow


def _of_trace(path: Path) -> list[LoadRequest]:
    from tidemill.bench.load.plan import requests_of
    from tidemill.bench.load.prompts import IdPrompts
    from tidemill.bench.traces.formats import load_trace

    return requests_of(load_trace(path).rows, IdPrompts())


def _figures(load: str, policy: str, run: FleetRun) -> dict[str, Any]:
    return {
        "load": load,
        "policy": policy,
        "mean_ttft_seconds": round(run.mean_ttft, 4),
        "hit_share": round(run.hit_share, 3),
        "load_max_over_mean": round(run.imbalance(), 3),
        "busy_max_over_mean": round(run.imbalance(lambda one: one.busy_seconds), 3),
        "requests": [one.requests for one in run.loads],
        "seconds": round(run.seconds, 1),
    }


def _print_line(figures: dict[str, Any], *, header: bool) -> None:
    if header:
        print(
            f"{'load':15} {'policy':18} {'mean TTFT':>10} {'cached':>7} {'load':>6} {'busy':>6}  (load, busy: max/mean)"
        )
    print(
        f"{figures['load']:15} {figures['policy']:18} {figures['mean_ttft_seconds']:8.3f} s "
        f"{figures['hit_share']:7.0%} {figures['load_max_over_mean']:6.2f} {figures['busy_max_over_mean']:6.2f}",
        flush=True,
    )

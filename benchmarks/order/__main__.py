"""What orders promise, on ``tidemill serve``; ``benchmarks/order_bench.py`` has the same loads on a simulated engine.

    python -m benchmarks.order shortest MODEL.gguf                      first come first served beside shortest first
    python -m benchmarks.order shortest MODEL.gguf --rate 9.1 --rounds 2 --for 150
    python -m benchmarks.order tenants MODEL.gguf --rate 10 --share 0.1 a tenant alone, and beside one that sends 10x

shortest   a bursty trace (burstgpt-conv, lengths a quarter, each request by itself) at 85 % of the capacity, in turns
           first come first served and shortest first; requests say how long their answers will be
tenants    a steady one (azure-conv-2023): a tenant with a share of the capacity alone, then beside another one that
           sends ten times as much, each with a key of its own

The capacity is the rate at which the server answers all requests of the trace when they come at once, first come first
served; ``--rate`` says it where it is known. Each turn has a server of its own, so nobody finds what another turn left
in a cache. No turn begins after ``--for`` seconds. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from benchmarks.order.live import LiveServer
from benchmarks.order_bench import BURSTY, LOAD, STEADY, Bench, Figures, two_tenants
from tidemill.bench.load.request import LoadRequest

MILLISECONDS = 1e3


@dataclass(slots=True, kw_only=True)
class Turns:
    """Figures of each turn, by what was measured in it."""

    until: float
    """Monotonic seconds after which no turn begins."""
    found: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def take(
        self, name: str, server: LiveServer, bench: Bench, requests: list[LoadRequest], *options: str, tenant: str = ""
    ) -> None:
        """One turn, unless the time is over."""
        if time.monotonic() > self.until:
            return
        live = server.run(bench, requests, *options)
        figures = Figures.of(live.run, tenant or None)
        valid = not live.run.complaints
        self.found.setdefault(name, []).append({**asdict(figures), **live.counts, "valid": valid})
        print(
            f"{name:18} TTFT mean {figures.ttft_mean:7.3f} s, p99 {figures.ttft_p99:7.3f}, most {figures.longest:7.3f}"
            f"   ITL p99 {figures.itl_p99 * MILLISECONDS:6.1f} ms   overtaken by {figures.overtake:6.2f} s later"
            f" (server: {live.counts['longest_overtake_seconds']:.2f})   failed {figures.failed}"
            f"   {live.run.seconds:.1f} s{'' if valid else '   ' + '; '.join(live.run.complaints)}",
            flush=True,
        )

    def median(self, name: str, figure: str) -> float:
        """Of the turns; nan without any."""
        return statistics.median([one[figure] for one in self.found.get(name, [])] or [float("nan")])

    def ratio(self, above: str, below: str, figure: str) -> float:
        """Of two medians."""
        return round(self.median(above, figure) / self.median(below, figure), 3)


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("shortest", "tenants"))
    parser.add_argument("model")
    parser.add_argument(
        "--requests", type=int, default=300, help="of the bursty trace; of either, to find the capacity"
    )
    parser.add_argument("--rate", type=float, help="requests/s of the capacity; it is measured where it is not said")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--for", dest="time", type=float, default=150.0, help="begin no turn after so many seconds")
    parser.add_argument("--patience", type=float, default=30.0, help="order_patience of shortest first, in seconds")
    parser.add_argument("--share", type=float, default=0.1, help="of the capacity, the tenant's rate")
    parser.add_argument("--count", type=int, default=60, help="the tenant's requests")
    parser.add_argument("--order", default="fair", help="order where tenants share the server")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-step-tokens", type=int, default=128)
    parser.add_argument("--serve-options", default="", help="further options of the server, as one text")
    asked = parser.parse_args()
    turns = Turns(until=time.monotonic() + asked.time)
    bench = Bench(trace=BURSTY if asked.what == "shortest" else STEADY, requests=asked.requests, seed=asked.seed)
    server = LiveServer(
        model=asked.model,
        options=[
            *("--max-step-tokens", str(asked.max_step_tokens), "--kv-memory", "768MiB", "--max-wait-seconds", "0"),
            *asked.serve_options.split(),
        ],
    )
    capacity = asked.rate or _capacity(server, bench)
    said = {"what": asked.what, "capacity": round(capacity, 3), "seed": asked.seed, "requests": asked.requests}
    report = (_shortest if asked.what == "shortest" else _tenants)(asked, turns, server, bench, capacity)
    print(json.dumps({**said, **report, "turns": turns.found}))


def _capacity(server: LiveServer, bench: Bench) -> float:
    run = server.run(bench, [replace(one, due=0.0) for one in bench.load().at(1.0)]).run
    rate = bench.requests / run.seconds
    print(f"capacity           {rate:.2f} requests/s: {bench.requests} that came at once took {run.seconds:.1f} s")
    return rate


def _shortest(
    asked: argparse.Namespace, turns: Turns, server: LiveServer, bench: Bench, capacity: float
) -> dict[str, Any]:
    load = bench.told(bench.load().at(LOAD * capacity))
    plain = [replace(one, expected_tokens=None) for one in load]  # refused by orders that do not look at it
    for number in range(asked.rounds):
        both = [("fcfs", plain, ()), ("srf", load, ("--order", "srf", "--order-patience", str(asked.patience)))]
        for name, requests, options in both if number % 2 == 0 else both[::-1]:
            turns.take(name, server, bench, requests, *options)
    ratios = {
        "ttft_mean_fcfs_over_srf": turns.ratio("fcfs", "srf", "ttft_mean"),
        "itl_p99_srf_over_fcfs": turns.ratio("srf", "fcfs", "itl_p99"),
    }
    overtake = max((one["longest_overtake_seconds"] for one in turns.found.get("srf", [])), default=0.0)
    print(
        f"fcfs / srf         TTFT mean {ratios['ttft_mean_fcfs_over_srf']:.2f}   srf / fcfs  ITL p99 "
        f"{ratios['itl_p99_srf_over_fcfs']:.3f}   longest overtake {overtake:.2f} s of {asked.patience:g} s"
    )
    return {**ratios, "overtake": overtake, "patience": asked.patience}


def _tenants(
    asked: argparse.Namespace, turns: Turns, server: LiveServer, bench: Bench, capacity: float
) -> dict[str, Any]:
    server = replace(server, tenants=("one", "other"))
    bench = replace(bench, requests=12 * asked.count)  # more than both send: nobody sends a prompt again
    rate = asked.share * capacity
    for number in range(asked.rounds):
        for times in (0, 10) if number % 2 == 0 else (10, 0):
            load = two_tenants(bench, rate=rate, count=asked.count, times=times)
            turns.take(f"beside {times}x", server, bench, load, "--order", asked.order, tenant="one")
    ratio = turns.ratio("beside 10x", "beside 0x", "ttft_p99")
    print(f"beside 10x / alone TTFT p99 {ratio:.2f}   share of the capacity {asked.share:g}, order {asked.order}")
    return {"ttft_p99_beside_over_alone": ratio, "share": asked.share, "order": asked.order}


if __name__ == "__main__":
    main()

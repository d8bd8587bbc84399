"""The highest rate of requests within one objective, on three loads, from continuous batching alone to everything.

    python -m benchmarks.three_loads MODEL.gguf --step-times steps.json                              simulated
    python -m benchmarks.three_loads MODEL.gguf --step-times steps.json --state live.json --for 50   live, several times

Step times come from ``tidemill bench ablate MODEL --simulate --step-times steps.json``. A live search begins at the
rate that was simulated; searches take turns, a rate each, on an engine that is made for it, and go on where the file of
``--state`` ends. The simulator guesses no tokens: its last rung is the one before. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from functools import partial
from pathlib import Path

from benchmarks.three_loads.loads import LOADS, RatedLoad
from benchmarks.three_loads.rungs import RUNGS, configured
from benchmarks.three_loads.search import Key, Searches
from tidemill.bench.ablation.live import LiveMeasure
from tidemill.bench.ablation.simulated import SimulatedMeasure
from tidemill.bench.figures.slo import parse_slo
from tidemill.bench.simulation.step_times import load_step_times
from tidemill.bench.sweep.knee import GOOD_SHARE
from tidemill.core.config import EngineConfig, ModelConfig
from tidemill.core.machine import available_memory
from tidemill.models.loading import load_text_source
from tidemill.models.shape import read_shape
from tidemill.text.tokenizer import build_tokenizer

SLO = "ttft:p99<2s; itl:p95<150ms"


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--step-times", type=Path, required=True)
    parser.add_argument("--loads", default=",".join(LOADS))
    parser.add_argument("--rungs", default=",".join(RUNGS), help="live ones; simulated are all")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long requests keep coming at each rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--state", type=Path, help="measure live, and keep what was tried here")
    parser.add_argument(
        "--for", dest="time", type=float, default=50.0, help="begin no live trial after so many seconds"
    )
    asked = parser.parse_args()
    config = EngineConfig(model=ModelConfig(path=asked.model), kv_memory=2**29)
    encode = build_tokenizer(load_text_source(asked.model)).encode
    loads = {name: LOADS[name](encode, seconds=asked.seconds, seed=asked.seed) for name in asked.loads.split(",")}
    starts = _simulated(asked, config, loads)
    if asked.state is not None:
        _live(asked, config, loads, starts)


def _simulated(asked: argparse.Namespace, config: EngineConfig, loads: dict[str, RatedLoad]) -> dict[Key, float]:
    shape = read_shape(config.model)
    times, slo = load_step_times(asked.step_times, shape.name), parse_slo(SLO)
    rates: dict[Key, float] = {}
    for name, load in loads.items():
        measure = SimulatedMeasure(shape=shape, times=times, load=load, slo=slo, memory=available_memory())
        start = 2.0
        for rung in RUNGS:
            searches = Searches(state=None, starts={(name, rung): start})
            while (key := searches.next([(name, rung)])) is not None:
                searches.attempt(key, partial(measure, configured(config, rung)))
            start = rates[name, rung] = searches.knee((name, rung)).nearest.rate
    _print("simulated", rates, {})
    return rates


def _live(
    asked: argparse.Namespace, config: EngineConfig, loads: dict[str, RatedLoad], starts: dict[Key, float]
) -> None:
    searches = Searches(state=asked.state, starts=starts)
    keys = [(name, rung) for name in loads for rung in asked.rungs.split(",")]
    slo, end = parse_slo(SLO), time.monotonic() + asked.time
    while time.monotonic() < end and (key := searches.next(keys)) is not None:
        measure = LiveMeasure(load=loads[key[0]], slo=slo, needed_share=GOOD_SHARE)
        print(searches.attempt(key, partial(measure, configured(config, key[1]))), file=sys.stderr, flush=True)
    knees = {key: searches.knee(key) for key in keys if key in searches.tried}
    ended = {key: searches.search(key).rate is None for key in keys}
    _print("live", {key: knee.rate for key, knee in knees.items()}, ended)


def _print(how: str, rates: dict[Key, float], ended: dict[Key, bool]) -> None:
    print(how)
    for (load, rung), rate in rates.items():
        first = next(found for (name, _), found in rates.items() if name == load)
        under_way = "" if ended.get((load, rung), True) else "  (not ended)"
        ratio = f"{rate / first:6.2f}x" if first else "     -"
        print(f"    {load:14} {rung:10} {rate:7.3f} requests/s {ratio}{under_way}")
    print(json.dumps({"how": how, "rates": [[*key, round(rate, 4)] for key, rate in rates.items()]}))


if __name__ == "__main__":
    main()

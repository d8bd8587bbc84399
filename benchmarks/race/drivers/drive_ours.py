"""Our executor, driven by plans: steps of the works named at the start.

python drive_ours.py MODEL --works '[[16, 256, 1]]' [--threads N]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

from answering import Values, answer

from tidemill.bench.rig import Rig
from tidemill.bench.tables import profile_rows
from tidemill.bench.work import Work
from tidemill.core.config import EngineConfig, ExecutorConfig, ModelConfig
from tidemill.executors.roof import Roof

_LATER = 64
_LONG = 0.5
"""Seconds of a step from which on it needs no step before it to warm up the caches."""


def main() -> None:
    """Load and answer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--works", type=json.loads, required=True)
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()

    def start() -> tuple[Values, Callable[[Values], Values]]:
        works = [Work(streams=streams, context=context, tokens=tokens) for streams, context, tokens in args.works]
        config = EngineConfig(model=ModelConfig(path=args.model), executor=ExecutorConfig(threads=args.threads))
        driver = Driver(Rig(config, works, later=_LATER))
        return {"ready": driver.rig.executor.description}, driver.turn

    answer(start)


class Driver:
    """Steps over and over; the roof that was measured last is what shares are of."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self._roof: Roof | None = None
        self._last: dict[Work, float] = {}

    def turn(self, ask: Values) -> Values:
        """``do``: "work", with ``seconds`` to fill, or "roof"."""
        if ask["do"] == "roof":
            self._roof = self.rig.executor.measure_roof(seconds=ask["seconds"])
            return {"read": self._roof.read, "integers": self._roof.integers, "floats": self._roof.floats}
        work = Work(streams=ask["streams"], context=ask["context"], tokens=ask["tokens"])
        steps = self._steps(work, ask["seconds"])
        median = sorted(steps)[len(steps) // 2]
        self._last[work] = median
        figures = {"rate": work.step_tokens / median, "steps": len(steps)}
        if self._roof is not None and ask.get("share"):
            figures["roof_share"] = self._share(work, median, self._roof)
        return figures

    def _steps(self, work: Work, seconds: float) -> list[float]:
        steps: list[float] = []
        begin = time.perf_counter()
        if self._last.get(work, 0.0) < _LONG:
            self._last[work] = self.rig.step(work, 0)[0]
        while not steps or time.perf_counter() - begin + self._last[work] < seconds:
            steps.append(self.rig.step(work, len(steps) % _LATER)[0])
        return steps

    def _share(self, work: Work, median: float, roof: Roof) -> float:
        """One stream reads its weights and little else: its share is of the read bandwidth, in file bytes. Of a prompt
        and of many streams it is the least time of a profiled step's parts over its time."""
        if work.streams == 1 and work.context:
            return self.rig.bytes_of(work) / median / roof.read
        profiles = sorted(
            (self.rig.step(work, number, profile=True) for number in range(1 if median > _LONG else 3)),
            key=lambda one: one[0],
        )
        return float(profile_rows(profiles[len(profiles) // 2][1], roof)[-1]["roof_share"])


if __name__ == "__main__":
    main()

"""Measuring a configuration on an engine in this process, made for the run and gone after it: nobody finds what another
run left in a cache.

An answer that ends before the tokens it asked for is played by hanging up: for the engine that is the same, its
sequence leaves and its blocks come back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from tidemill.bench.ablation.load import AnyLoad, ending_early
from tidemill.bench.ablation.point import Point
from tidemill.bench.figures.slo import Slo
from tidemill.bench.hope import Hope
from tidemill.bench.load.engine_target import EngineTarget
from tidemill.bench.load.record import RequestRecord
from tidemill.bench.load.request import LoadRequest
from tidemill.bench.load.run import Load, Run, run_load
from tidemill.core.config import EngineConfig
from tidemill.engine.factory import build_loop
from tidemill.engine.in_process import InProcessEngine

__all__ = ["LiveMeasure"]

_WARMUP: Final = 16
"""Tokens of the request that goes before."""


@dataclass(slots=True, kw_only=True)
class LiveMeasure:
    """Implements ``study.Measure``."""

    load: AnyLoad
    slo: Slo
    needed_share: float | None = None
    """Hang up on everything and raise GaveUp once no such share of requests can be within the objectives."""

    def __call__(self, config: EngineConfig, rate: float) -> Point:
        """Start an engine, put the load on it, and end it. Raises what starting it raises, and GaveUp."""
        return Point.of(rate, asyncio.run(self.run(config, rate)), self.slo)

    async def run(self, config: EngineConfig, rate: float) -> Run:
        """The run itself."""
        engine = InProcessEngine(build_loop(config))
        await engine.start()
        try:
            target = EngineTarget(engine=engine)
            await target.start()
            done = await self._put(target, Load(requests=self._requests(rate), warmup=self._warmup()))
        finally:
            await engine.close()
        return replace(done, records=_ended(done.records))

    async def _put(self, target: EngineTarget, load: Load) -> Run:
        hope = Hope(self.slo, self.needed_share, len(load.requests))

        def ended(record: RequestRecord) -> None:
            if hope.lost(_as_planned(record)):
                running.cancel()

        running = asyncio.ensure_future(run_load(load, target, on_record=ended))
        try:
            return await running
        except asyncio.CancelledError:
            if hope.gone is None:
                raise
            raise hope.gone from None

    def _requests(self, rate: float) -> list[LoadRequest]:
        return ending_early(self.load.at(rate), self.load.answers)

    def _warmup(self) -> list[LoadRequest]:
        prompt = self.load.prompts.make((), _WARMUP, "warmup")
        return [LoadRequest(index=-1, prompt=prompt, max_tokens=_WARMUP)]


def _ended(records: Sequence[RequestRecord]) -> list[RequestRecord]:
    return [_as_planned(one) for one in records]


def _as_planned(record: RequestRecord) -> RequestRecord:
    """A record in which an answer that was hung up on as planned has ended by itself."""
    if record.outcome != "cancelled":
        return record
    return replace(record, outcome="ok", finish_reason="stop", error=None)

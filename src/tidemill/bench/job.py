"""A load as it was asked for, put on a server or on an engine of its own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from ipaddress import ip_address
from typing import Any

from tidemill.bench.figures.cost import PriceModel
from tidemill.bench.figures.slo import Slo
from tidemill.bench.hope import Hope
from tidemill.bench.load.engine_target import EngineTarget
from tidemill.bench.load.options import LoadOptions, ServerOptions
from tidemill.bench.load.prompt_options import PromptOptions
from tidemill.bench.load.prompts import Prompts
from tidemill.bench.load.record import RequestRecord
from tidemill.bench.load.served_models import served_models
from tidemill.bench.load.target import Target
from tidemill.bench.measurement import Measurement, measure
from tidemill.bench.progress import Progress
from tidemill.bench.server_state import StateWatch, states_at
from tidemill.bench.traces.row import TraceRow
from tidemill.core.config import EngineConfig
from tidemill.core.errors import SetupError

__all__ = ["Done", "Job"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A measurement and its target."""

    target: str
    """Its name."""
    measurement: Measurement

    @property
    def values(self) -> dict[str, Any]:
        """All figures, and of what."""
        return {"target": self.target, **self.measurement.figures}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is asked for. Making one checks it: ConfigError names the option."""

    load: LoadOptions
    prompts: PromptOptions
    rows: Sequence[TraceRow] | None = None
    """Of a trace."""
    slo: Slo | None = None
    price: PriceModel | None = None
    progress: bool = True
    """Show what happens on a terminal's standard error."""
    prompt_seed: int | None = None
    """Of the prompts' tokens; None: the load's. Another one gives the same load of other tokens."""
    needed_share: float | None = None
    """Hang up on everything and raise GaveUp once no such share of requests can be within the objectives."""
    keep_interrupted: bool = False
    """Cancelled, a job hangs up and gives what had been measured, as a run that does not count."""

    def __post_init__(self) -> None:
        self.load.check(traced=self.rows is not None)

    async def at_server(self, server: ServerOptions, model: str | None) -> Done:
        """``model``: as the server calls it; None: the first one it lists. Raises SetupError if it cannot be asked."""
        prompts = self.prompts.made(server.endpoint, seed=self._prompt_seed)
        target = server.target(model or "", self.load.parsed_tenants())
        try:
            if model is None:
                names = await served_models(target)
                if not names:
                    raise SetupError(f"{target.client.url}: it serves no model", param="model")
                target.model = names[0]
            look, asker = states_at(target.client, target.sent_headers())
            try:
                return await self._measured(
                    target, prompts, local=_is_loopback(target.client.host), watch=StateWatch(look)
                )
            finally:
                await asker.close()
        finally:
            await target.close()

    async def in_process(self, config: EngineConfig) -> Done:
        """An engine of its own, in a process of its own as a server has it, without HTTP and text. Raises what stops
        its start: ModelLoadError, DoesNotFit, ConfigError."""
        from tidemill.engine.admission import check_generates
        from tidemill.engine.client import ProcessEngine

        engine = ProcessEngine(config)
        try:
            await engine.start()
            check_generates(engine.info)
            prompts = self.prompts.ids(seed=self._prompt_seed, vocab_size=engine.info.vocab_size)

            async def look() -> tuple[float, float]:
                stats = engine.stats()
                return stats.running, stats.waiting

            return await self._measured(EngineTarget(engine=engine), prompts, local=True, watch=StateWatch(look))
        finally:
            await engine.close()

    def asked(self) -> dict[str, Any]:
        """The options, for the record; without keys."""
        load = {**asdict(self.load), "tenants": [tenant.name for tenant in self.load.parsed_tenants()]}
        return {"load": load, "prompts": asdict(self.prompts), "slo": self.slo.text if self.slo else None}

    async def _measured(self, target: Target, prompts: Prompts, *, local: bool, watch: StateWatch) -> Done:
        load = self.load.load(prompts, self.rows)
        name = target.name
        hope = Hope(self.slo, self.needed_share, len(load.requests))
        async with Progress(len(load.requests), shown=self.progress and sys.stderr.isatty()) as progress:

            def ended(record: RequestRecord) -> None:
                progress.on_record(record)
                if hope.lost(record):
                    running.cancel()

            running = asyncio.ensure_future(
                measure(
                    load,
                    target,
                    slo=self.slo,
                    price=self.price,
                    limits=self.load.limits(),
                    seed=self.load.seed,
                    local=local,
                    watch=watch,
                    on_record=ended,
                    on_start=progress.on_start,
                    keep_interrupted=self.keep_interrupted,
                )
            )
            try:
                return Done(target=name, measurement=await running)
            except asyncio.CancelledError:
                if hope.gone is None:
                    raise
                raise hope.gone from None

    @property
    def _prompt_seed(self) -> int:
        return self.load.seed if self.prompt_seed is None else self.prompt_seed


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

"""A load as it was asked for, put on a server or on an engine of its own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from ipaddress import ip_address
from typing import Any

from tidemill.bench.figures.cost import PriceModel
from tidemill.bench.figures.slo import Slo
from tidemill.bench.load.engine_target import EngineTarget
from tidemill.bench.load.options import LoadOptions, ServerOptions
from tidemill.bench.load.prompt_options import PromptOptions
from tidemill.bench.load.prompts import Prompts
from tidemill.bench.load.served_models import served_models
from tidemill.bench.load.target import Target
from tidemill.bench.measurement import Measurement, measure
from tidemill.bench.progress import Progress
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

    def __post_init__(self) -> None:
        self.load.check(traced=self.rows is not None)

    async def at_server(self, server: ServerOptions, model: str | None) -> Done:
        """``model``: as the server calls it; None: the first one it lists. Raises SetupError if it cannot be asked."""
        prompts = self.prompts.made(server.endpoint, seed=self.load.seed)
        target = server.target(model or "", self.load.parsed_tenants())
        try:
            if model is None:
                names = await served_models(target)
                if not names:
                    raise SetupError(f"{target.client.url}: it serves no model", param="model")
                target.model = names[0]
            return await self._measured(target, prompts, local=_is_loopback(target.client.host))
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
            prompts = self.prompts.ids(seed=self.load.seed, vocab_size=engine.info.vocab_size)
            return await self._measured(EngineTarget(engine=engine), prompts, local=True)
        finally:
            await engine.close()

    def asked(self) -> dict[str, Any]:
        """The options, for the record; without keys."""
        load = {**asdict(self.load), "tenants": [tenant.name for tenant in self.load.parsed_tenants()]}
        return {"load": load, "prompts": asdict(self.prompts), "slo": self.slo.text if self.slo else None}

    async def _measured(self, target: Target, prompts: Prompts, *, local: bool) -> Done:
        load = self.load.load(prompts, self.rows)
        name = target.name
        async with Progress(len(load.requests), shown=self.progress and sys.stderr.isatty()) as progress:
            measurement = await measure(
                load,
                target,
                slo=self.slo,
                price=self.price,
                limits=self.load.limits(),
                seed=self.load.seed,
                local=local,
                on_record=progress.on_record,
                on_start=progress.on_start,
            )
        return Done(target=name, measurement=measurement)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

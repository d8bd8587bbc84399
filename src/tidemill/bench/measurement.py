"""One measurement from beginning to end: a target, a load, figures, and the conditions that they hold under."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tidemill.bench.figures.cost import PriceModel
from tidemill.bench.figures.energy import EnergyMeter
from tidemill.bench.figures.slo import Slo
from tidemill.bench.figures.summary import figures
from tidemill.bench.load.lateness import ClientLimits
from tidemill.bench.load.record import RequestRecord
from tidemill.bench.load.run import Load, Run, run_load
from tidemill.bench.load.sender import Sender
from tidemill.bench.load.target import Target
from tidemill.bench.server_state import ServerState, StateWatch
from tidemill.core.clock import Clock
from tidemill.core.machine import read_machine
from tidemill.core.version import __version__

__all__ = ["Measurement", "conditions", "measure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A run and what was worked out of it."""

    run: Run
    figures: dict[str, Any]
    states: Sequence[ServerState] = ()
    """What the server said about itself meanwhile, where it does."""


async def measure(
    load: Load,
    target: Target,
    *,
    slo: Slo | None = None,
    price: PriceModel | None = None,
    limits: ClientLimits | None = None,
    seed: int = 0,
    local: bool = False,
    clock: Clock | None = None,
    watch: StateWatch | None = None,
    on_record: Callable[[RequestRecord], None] = lambda _record: None,
    on_start: Callable[[Sender], None] = lambda _sender: None,
    keep_interrupted: bool = False,
) -> Measurement:
    """Start a target, put the load on it and close it. ``local``: it runs on this machine, whose energy is then its
    own. ``watch``: looks at the server meanwhile. ``keep_interrupted``: as ``run_load`` has it. Raises TidemillError
    for a target that cannot be used."""

    def started(sender: Sender) -> None:
        on_start(sender)
        if watch is not None:
            watch.on_start(sender)

    try:
        await target.start()
        meter = EnergyMeter() if local else None
        run = await run_load(
            load,
            target,
            clock=clock,
            limits=limits,
            on_record=on_record,
            on_start=started,
            keep_interrupted=keep_interrupted,
        )
        joules = meter.joules() if meter else None
    finally:
        if watch is not None:
            await watch.stop()
        await target.close()
    values = figures(run, slo=slo, price=price, joules=joules, seed=seed)
    return Measurement(run=run, figures=values, states=watch.states if watch else ())


def conditions() -> dict[str, Any]:
    """The machine of the client, and when."""
    machine = read_machine()
    return {
        "tidemill": __version__,
        "python": platform.python_version(),
        "processor": machine.cpu_model,
        "processors": machine.cpus,
        "system": platform.platform(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }

"""Measuring a configuration on the simulated engine: seconds where the live one takes minutes, and always the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tidemill.bench.ablation.load import AnyLoad
from tidemill.bench.ablation.point import Point
from tidemill.bench.figures.slo import Slo
from tidemill.bench.load.run import Run
from tidemill.bench.simulation.calibration import measure_step_times, with_host
from tidemill.bench.simulation.simulated_run import simulate
from tidemill.bench.simulation.step_times import StepModel, StepTimes, variant_name
from tidemill.core.config import EngineConfig
from tidemill.core.errors import ConfigError
from tidemill.engine.factory import kv_space
from tidemill.graph.passes.fuse import fuse
from tidemill.models.memory_plan import plan_memory
from tidemill.models.shape import ModelShape

__all__ = ["SimulatedMeasure", "measured_variants"]


@dataclass(slots=True, kw_only=True)
class SimulatedMeasure:
    """Implements ``study.Measure``. What was simulated once is not simulated again."""

    shape: ModelShape
    times: Mapping[str, StepTimes]
    """By ``variant_name`` of the executor."""
    load: AnyLoad
    slo: Slo
    memory: int
    """Bytes that the engine may take."""
    _known: dict[tuple[EngineConfig, float], Point] = field(default_factory=dict, init=False)

    def __call__(self, config: EngineConfig, rate: float) -> Point:
        """Simulate it. Raises ConfigError for an executor of which there are no step times."""
        if (config, rate) not in self._known:
            self._known[config, rate] = Point.of(rate, self.run(config, rate), self.slo)
        return self._known[config, rate]

    def run(self, config: EngineConfig, rate: float) -> Run:
        """The run itself."""
        name = variant_name(config.executor)
        if name not in self.times:
            raise ConfigError(f"there are no step times for {name}: measure them", param="step_times")
        graph = fuse(self.shape.graph)
        model = StepModel(graph, self.shape.formats, self.times[name])
        pools = plan_memory(self.shape, config, self.memory).pools()
        return simulate(
            self.load.at(rate),
            self.load.answers,
            config=config.scheduler,
            space=kv_space(pools, graph.kv_groups),
            step_seconds=model.seconds,
        )


def measured_variants(configs: list[EngineConfig], known: Mapping[str, StepTimes]) -> dict[str, StepTimes]:
    """Step times of each executor among the configurations: those that are known, and the others measured here. The
    host's part is that of the first: it does not depend on how steps are computed."""
    found = dict(known)
    for config in configs:
        name = variant_name(config.executor)
        if name in found:
            continue
        times = measure_step_times(config)
        if found:
            first = next(iter(found.values()))
            times = replace(times, host=first.host, host_row=first.host_row)
        else:
            times = with_host(times, config)
        found[name] = times
    return found

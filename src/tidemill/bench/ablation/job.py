"""``tidemill bench ablate`` from beginning to end: model, load, contests, measurements, report."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tidemill.executors.strategies
import tidemill.scheduling.strategies  # noqa: F401 (both fill the registry)
from tidemill.bench.ablation.contests import Contest, chosen_contests, configurations
from tidemill.bench.ablation.live import LiveMeasure
from tidemill.bench.ablation.load import AblationLoad
from tidemill.bench.ablation.options import AblationOptions
from tidemill.bench.ablation.point import Point
from tidemill.bench.ablation.report import lines, values
from tidemill.bench.ablation.simulated import SimulatedMeasure, measured_variants
from tidemill.bench.ablation.study import Measure, Study
from tidemill.bench.figures.slo import Slo, parse_slo
from tidemill.bench.simulation.step_times import StepTimes, load_step_times, save_step_times
from tidemill.core.config import EngineConfig
from tidemill.core.errors import ConfigError
from tidemill.core.machine import available_memory, read_machine
from tidemill.models.measured import machine_name
from tidemill.models.memory_plan import plan_memory
from tidemill.models.shape import ModelShape, read_shape

__all__ = ["AblationJob", "report_lines"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AblationJob:
    """What to compare, and how."""

    config: EngineConfig
    options: AblationOptions
    strategies: Sequence[str] = ()
    """Names, or name=twin for one row; none: all that act on steps."""
    simulate: bool = False
    step_times: Path | None = None
    """Step times are read from this file; what it lacks is measured and added to it."""
    on_trial: Callable[[str, Point], None] = lambda _name, _point: None

    def run(self) -> dict[str, Any]:
        """Everything that was measured, in plain types. Raises ConfigError for what cannot be compared."""
        if self.step_times is not None and not self.simulate:
            raise ConfigError("step_times are for a simulation: add simulate", param="step_times")
        slo = parse_slo(self.options.slo)
        self.options.search()
        rows = chosen_contests(self.config, self.strategies)
        shape = read_shape(self.config.model)
        if shape.graph.pools:
            raise ConfigError(f"{shape.name} embeds and does not generate: there is nothing to serve", param="model")
        load = self.options.load(shape, longest=self._longest(shape, rows))
        measure = self._simulated(shape, rows, load, slo) if self.simulate else LiveMeasure(load=load, slo=slo)
        study = Study(
            contests=rows,
            measure=measure,
            search=self.options.search,
            pairs=self.options.pairs or (1 if self.simulate else 2),
            on_trial=self.on_trial,
        )
        return {
            "bench": "ablate",
            "how": "simulated" if self.simulate else "live",
            "model": shape.name,
            "machine": machine_name(read_machine()),
            "slo": self.options.slo,
            "max_step_tokens": self.config.scheduler.max_step_tokens,
            "load": _load_values(self.options, load),
            **values(study.run()),
        }

    def _longest(self, shape: ModelShape, rows: Sequence[Contest]) -> int:
        """Tokens that a sequence can have in every configuration: the model's length, or what the KV holds."""
        memory = available_memory()
        plans = [plan_memory(shape, config, memory) for config in configurations(rows)]
        return min(min(plan.max_model_len, plan.capacity_tokens) for plan in plans)

    def _simulated(self, shape: ModelShape, rows: Sequence[Contest], load: AblationLoad, slo: Slo) -> Measure:
        times = self._times(shape, configurations(rows))
        return SimulatedMeasure(shape=shape, times=times, load=load, slo=slo, memory=available_memory())

    def _times(self, shape: ModelShape, configs: list[EngineConfig]) -> Mapping[str, StepTimes]:
        """Those of the file, and measured ones of the executors that it lacks, which are added to it."""
        there = self.step_times is not None and self.step_times.exists()
        known = load_step_times(self.step_times, shape.name) if there and self.step_times is not None else {}
        found = measured_variants(configs, known)
        if self.step_times is not None and len(found) > len(known):
            save_step_times(self.step_times, shape.name, machine_name(read_machine()), found)
        return found


def report_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """What ``AblationJob.run`` returned, as text."""
    load = found["load"]
    yield f"{found['model']}, {found['how']}, steps of at most {found['max_step_tokens']} tokens, on {found['machine']}"
    yield (
        f"{load['requests']} requests of {load['trace']}: prompts of {load['prompt_tokens_mean']} tokens on average, "
        f"answers of {load['output_tokens_mean']}, {load['asked_tokens']} asked for"
    )
    yield f"objectives: {found['slo']}"
    yield ""
    yield from lines(found)


def _load_values(options: AblationOptions, load: AblationLoad) -> dict[str, Any]:
    return {
        "trace": options.trace,
        "requests": len(load.rows),
        "shrink": options.shrink,
        "shared_tokens": options.shared_tokens,
        "prompt_tokens_mean": round(statistics.mean(row.prompt_tokens for row in load.rows), 1),
        "output_tokens_mean": round(statistics.mean(row.output_tokens for row in load.rows), 1),
        "asked_tokens": load.asked,
        "seed": options.seed,
    }

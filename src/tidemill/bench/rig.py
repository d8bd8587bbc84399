"""A model on an executor with its KV filled, to run one shape of step over and over."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tidemill.bench.work import Work
from tidemill.core.config import EngineConfig
from tidemill.core.errors import ConfigError
from tidemill.core.step import KindTime
from tidemill.executors.factory import make_executor
from tidemill.executors.protocol import Executor, KvPoolSpec
from tidemill.executors.roof import Roof
from tidemill.graph.graph import Graph
from tidemill.graph.kv_format import KvFormat
from tidemill.graph.passes.cost import RowShape, StepCost, step_cost, weight_bytes
from tidemill.graph.passes.fuse import fuse
from tidemill.graph.weight_source import formats_of
from tidemill.models.loading import load_model
from tidemill.models.model import Model

__all__ = ["Rig", "Timing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Steps of one shape, timed."""

    work: Work
    seconds: tuple[float, ...]
    """Of each repeat: one step, its plan handed over and its tokens taken back."""
    cost: StepCost
    profile: tuple[KindTime, ...] = ()
    """Of the profiled step with the median time."""

    @property
    def median(self) -> float:
        """Seconds of a step."""
        return statistics.median(self.seconds)

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.work.step_tokens / self.median

    @property
    def bytes(self) -> int:
        """Weights in file bytes, and KV, that a step has to move at least."""
        return _moved(self.cost)


class Rig:
    """Close it after use."""

    def __init__(self, config: EngineConfig, works: Sequence[Work], *, later: int) -> None:
        """Load and pack the model and make room for the largest of the works. ``later``: steps after the context.

        Raises ConfigError for a model that does not generate, or an executor that runs no steps natively.
        """
        self._config = config
        self._later = later
        model = load_model(config.model)
        if model.graph.pools:
            raise ConfigError(f"{model.name} embeds and does not generate: its steps are not measured", param="model")
        self.graph = fuse(model.graph)
        self.name = model.name
        self.max_position = model.max_position
        self.format = main_format(model)
        self.formats = formats_of(model.weights, (spec.name for spec in self.graph.weights))
        self.file_bytes = weight_bytes(self.graph, self.formats)
        self.executor = make_executor(self.graph, model.weights, config.executor)
        blocks = max(work.blocks(config.block_size, later) for work in works)
        self.executor.allocate_kv(
            [
                KvPoolSpec(group=group.name, num_blocks=blocks, block_size=config.block_size)
                for group in self.graph.kv_groups
            ]
        )
        _fill(self.executor, self.graph, blocks, KvFormat(config.executor.resolved_kv_format))

    def close(self) -> None:
        """Release threads and memory."""
        self.executor.close()

    def roofs(self, seconds: float) -> list[Roof]:
        """What the machine can do with one thread, and with as many as the executor has; so long for each."""
        most = self.executor.measure_roof(seconds=seconds)
        return [most] if most.threads == 1 else [self.executor.measure_roof(1, seconds), most]

    def measure(self, work: Work, *, repeats: int, seconds: float, profile: bool = False) -> Timing:
        """Run a step once to warm up, then ``repeats`` times or as often as fits into ``seconds``, five at least."""
        self.step(work, 0)
        taken: list[float] = []
        begin = time.perf_counter()
        while len(taken) < repeats and (len(taken) < 5 or time.perf_counter() - begin < seconds):
            taken.append(self.step(work, len(taken) % self._later)[0])
        profiles = [self.step(work, number, profile=True) for number in range(min(len(taken), 15) if profile else 0)]
        profiles.sort(key=lambda one: one[0])
        return Timing(
            work=work,
            seconds=tuple(taken),
            cost=self.cost(work),
            profile=profiles[len(profiles) // 2][1] if profiles else (),
        )

    def cost(self, work: Work) -> StepCost:
        """What the graph says a step costs."""
        row = RowShape(start=work.context, tokens=work.tokens, outputs=1)
        kv_format = KvFormat(self._config.executor.resolved_kv_format)
        return step_cost(self.graph, self.formats, rows=[row] * work.streams, kv_format=kv_format)

    def bytes_of(self, work: Work) -> int:
        """Weights in file bytes, and KV, that a step has to move at least."""
        return _moved(self.cost(work))

    def step(self, work: Work, number: int, *, profile: bool = False) -> tuple[float, tuple[KindTime, ...]]:
        """Run one step, ``number`` tokens after the work's context: its seconds, from the plan to its tokens, and its
        profile if asked for."""
        plan = work.plan(self.graph, number, block_size=self._config.block_size, later=self._later, profile=profile)
        begin = time.perf_counter()
        self.executor.submit(plan)
        result = self.executor.collect()
        return time.perf_counter() - begin, result.profile


def _moved(cost: StepCost) -> int:
    return cost.weight_bytes + cost.kv_read_bytes + cost.kv_write_bytes


def main_format(model: Model) -> str:
    """The format that most of a model's weights are in."""
    sizes: Counter[str] = Counter()
    shapes = {spec.name: spec.shape for spec in model.graph.weights if spec.name in model.weights}
    for name, format_ in formats_of(model.weights, shapes).items():
        sizes[format_.value] += math.prod(shapes[name])
    return sizes.most_common(1)[0][0]


def _fill(executor: Executor, graph: Graph, blocks: int, kv_format: KvFormat) -> None:
    """Put values into the KV: pages that nobody wrote to are one page of zeros, and would be read from the cache.

    Few blocks at a time: these values are in the peak of memory that is measured over a rig.
    """
    at_once = 4
    kind = np.dtype("<f4" if kv_format is KvFormat.F32 else "<f2")  # whose bytes are codes and scales as well
    random = np.random.default_rng(7)
    for group in graph.kv_groups:
        size = len(executor.read_blocks(group.name, [0]))
        numbers = random.standard_normal(at_once * size // kind.itemsize, dtype=np.float32)
        values = numbers.astype(kind).tobytes()
        for first in range(0, blocks, at_once):
            chosen = range(first, min(first + at_once, blocks))
            executor.write_blocks(group.name, list(chosen), values[: len(chosen) * size])

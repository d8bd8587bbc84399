"""The native executor: a graph lowered once into a program, stepped by C++ threads without the interpreter's lock."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tidemill.core.cache_folder import CacheUnusable, cache_base
from tidemill.core.config import ExecutorConfig
from tidemill.core.errors import ConfigError, DoesNotFit
from tidemill.core.machine import usable_cpus
from tidemill.core.step import KindTime, RowOutputs, StepPlan, StepResult, TokenLogprob
from tidemill.executors.native._native import Machine
from tidemill.executors.native.lowering import lower
from tidemill.executors.native.packed_cache import PackedCache, PackItem
from tidemill.executors.native.packed_weights import PackedWeights
from tidemill.executors.native.profile import StageTable
from tidemill.executors.protocol import KvPoolSpec
from tidemill.executors.roof import Roof, measure_roof
from tidemill.graph.formats import WeightTensor
from tidemill.graph.graph import Graph
from tidemill.graph.kv_format import KvFormat
from tidemill.graph.lora import Adapter, AdapterNumber
from tidemill.graph.weight_source import WeightSource

__all__ = ["NativeExecutor"]

_log = logging.getLogger(__name__)

ISA_VARIABLE = "TIDEMILL_ISA"
_KV_FORMATS = {KvFormat.F16: 0, KvFormat.F32: 1, KvFormat.Q8_0: 2, KvFormat.Q4_0: 3}
"""Numbers shared with csrc/kernels/attention.h, KvFormat."""


class NativeExecutor:
    """Implements executors.protocol.Executor. A step is computed in collect, by the thread that calls it
    and the machine's own."""

    def __init__(
        self,
        graph: Graph,
        weights: Mapping[str, WeightTensor],
        config: ExecutorConfig,
        *,
        force_row_variant: int = 0,
        adapters: bool = False,
    ) -> None:
        """Pack the weights and lower the graph, plain or fused. ``adapters``: some may be added.

        ``force_row_variant`` (1 to 4) fixes the rows per inner call of the linear kernels, for tests: the results are
        the same bits. Raises ConfigError for a setting that cannot run here, ModelLoadError for a wrong weight.
        """
        self._config = config
        self._pools = graph.pools
        self._groups = {group.name: index for index, group in enumerate(graph.kv_groups)}
        self._plan: StepPlan | None = None
        try:
            self._machine = Machine(
                isa=_isa(config),
                threads=usable_cpus() if config.threads is None else config.threads,
                materialized=config.attention == "materialized",
                row_variant=force_row_variant,
            )
        except ValueError as error:
            raise ConfigError(str(error)) from error
        self._packed = PackedWeights(self._machine, _cache(config, self._machine.threads, weights))
        lowered = lower(self._machine, graph, weights, config.numerics, self._packed, adapters=adapters)
        self._targets = lowered.targets
        self._kv_format = KvFormat(config.resolved_kv_format)
        self._stages = StageTable(graph, weights, lowered.instructions, self._kv_format)

    @property
    def description(self) -> str:
        threads = self._machine.threads
        return (
            f"native: {self._machine.isa}, {self._config.numerics} numerics, "
            f"KV {self._kv_format}, {self._config.attention} attention, "
            f"{threads} thread{'' if threads == 1 else 's'}"
        )

    @property
    def packed_bytes(self) -> int:
        """Bytes of the weights in the kernels' layouts."""
        return self._machine.packed_bytes

    @property
    def cached_bytes(self) -> int:
        """Bytes of them that are used in place from the packed cache."""
        return self._packed.cached_bytes

    @property
    def packed_items(self) -> tuple[PackItem, ...]:
        """The packed weights, in the order of their indices."""
        return self._packed.items

    def workspace_bytes(self, tokens: int, outputs: int) -> int:
        """Bytes of activations for a step of this many tokens and drawn positions."""
        return self._machine.workspace_bytes(tokens, outputs)

    @property
    def progress(self) -> int:
        return self._machine.progress

    def allocate_kv(self, pools: Sequence[KvPoolSpec], kv_format: KvFormat | None = None) -> None:
        if [spec.group for spec in pools] != list(self._groups):
            raise ValueError(f"pools for {[spec.group for spec in pools]}, but the KV groups are {list(self._groups)}")
        number = _KV_FORMATS[kv_format or self._kv_format]
        for index, spec in enumerate(pools):
            try:
                self._machine.allocate_kv(index, spec.num_blocks, spec.block_size, number)
            except MemoryError:
                raise DoesNotFit(
                    f"{spec.num_blocks} KV blocks of {spec.block_size} tokens do not fit into memory; lower kv_memory",
                    param="kv_memory",
                ) from None

    def add_adapter(self, number: AdapterNumber, adapter: Adapter) -> None:
        unknown = next((name for name in adapter.deltas if name not in self._targets), None)
        if unknown is not None:
            raise ValueError(f"no adapter can change {unknown}")
        parts = [
            (self._targets[name], np.ascontiguousarray(one.a), np.ascontiguousarray(one.b), one.scale)
            for name, one in adapter.deltas.items()
        ]
        self._machine.add_adapter(number, parts)

    def drop_adapter(self, number: AdapterNumber) -> None:
        self._machine.drop_adapter(number)

    def submit(self, plan: StepPlan) -> None:
        self._machine.submit(plan.rows, sample=not self._pools, profile=plan.profile)
        self._plan = plan

    def collect(self) -> StepResult:
        plan, self._plan = self._plan, None
        if plan is None:
            raise ValueError("no step is in flight")
        if self._pools:
            return self._vectors(plan)
        seconds, rows = self._machine.collect()
        return StepResult(
            step=plan.step, rows=tuple(_outputs(*row) for row in rows), seconds=seconds, profile=self._profile(plan)
        )

    def _profile(self, plan: StepPlan) -> tuple[KindTime, ...]:
        return self._stages.times(plan, self._machine.stage_seconds()) if plan.profile else ()

    def _vectors(self, plan: StepPlan) -> StepResult:
        vectors = iter(self._machine.collect_logits().astype("<f4"))
        rows = (RowOutputs(vector=next(vectors).tobytes()) if row.num_outputs else RowOutputs() for row in plan.rows)
        return StepResult(step=plan.step, rows=tuple(rows), seconds=self._machine.seconds, profile=self._profile(plan))

    def measure_roof(self, threads: int | None = None, seconds: float = 1.0) -> Roof:
        return measure_roof(
            isa=self._machine.isa,
            threads=self._machine.threads if threads is None else threads,
            size=self._machine.packed_bytes,
            seconds=seconds,
        )

    def copy_blocks(self, group: str, pairs: Sequence[tuple[int, int]]) -> None:
        for source, destination in pairs:
            self._machine.copy_block(self._groups[group], source, destination)

    def read_blocks(self, group: str, blocks: Sequence[int]) -> bytes:
        return self._machine.read_blocks(self._groups[group], blocks)

    def write_blocks(self, group: str, blocks: Sequence[int], data: bytes) -> None:
        self._machine.write_blocks(self._groups[group], blocks, data)

    def logits(self, plan: StepPlan) -> Mapping[int, npt.NDArray[np.float32]]:
        self._machine.submit(plan.rows, sample=False)
        values = self._machine.collect_logits()
        result = {}
        at = 0
        for index, row in enumerate(plan.rows):
            if row.num_outputs:
                result[index] = values[at : at + row.num_outputs]
            at += row.num_outputs
        return result

    def close(self) -> None:
        self._plan = None
        self._packed.close()
        self._machine.close()
        self._packed.release()


def _cache(config: ExecutorConfig, threads: int, weights: Mapping[str, WeightTensor]) -> PackedCache | None:
    """The packed cache, if it is on and can be had. Weights that come from no file are not worth keeping."""
    if config.packed_cache == "off" or not isinstance(weights, WeightSource):
        return None
    try:
        return PackedCache.opened(cache_base(config.cache_dir), limit=config.packed_cache_size, threads=threads)
    except CacheUnusable as error:
        _log.warning("packed cache: is not used: %s", error)
        return None


def _isa(config: ExecutorConfig) -> str:
    """The instruction set asked for: the setting, or for auto the environment's."""
    return os.environ.get(ISA_VARIABLE, "auto") if config.isa == "auto" else config.isa


def _outputs(
    tokens: tuple[int, ...], logprobs: tuple[tuple[int, float, tuple[tuple[int, float], ...]], ...] | None
) -> RowOutputs:
    if logprobs is None:
        return RowOutputs(tokens=tokens)
    return RowOutputs(
        tokens=tokens,
        logprobs=tuple(TokenLogprob(token=token, logprob=logprob, top=top) for token, logprob, top in logprobs),
    )

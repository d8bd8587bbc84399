"""From a configuration to an engine loop that is ready to step: load, plan the memory, make the executor."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.core.adapters import AdapterSource, adapter_sources
from tidemill.core.config import BLOCK_SIZES, EngineConfig, ModelConfig, SchedulerConfig
from tidemill.core.errors import ConfigError, InvalidRequest
from tidemill.core.machine import available_memory, read_machine
from tidemill.core.tokens import EngineInfo, EngineStats
from tidemill.engine.adapters import Adapters
from tidemill.engine.draft_loading import load_draft
from tidemill.engine.kv_events import KvEventCoder
from tidemill.engine.kv_publisher import KvPublisher, check_kv_events
from tidemill.engine.loop import EngineLoop
from tidemill.engine.memory_gauge import MemoryGauge
from tidemill.engine.prefix import BlockKeys
from tidemill.engine.profiler import StepProfiler
from tidemill.engine.rejection import RejectionSampling
from tidemill.engine.speculation import lengths_of, proposers_of
from tidemill.engine.speed import Speed
from tidemill.executors.protocol import Executor, KvPoolSpec
from tidemill.graph.graph import KvGroup
from tidemill.graph.kv_format import KvFormat
from tidemill.graph.lora import Adapter
from tidemill.scheduling.criteria import criteria_of
from tidemill.scheduling.kv.space import UNBOUNDED_TOKENS, KvGroupSpace, KvSpace
from tidemill.scheduling.scheduler import Scheduler
from tidemill.scheduling.setting_checks import check_settings
from tidemill.scheduling.speculation_kinds import speculation_kinds, strategy_name
from tidemill.scheduling.strategies import JUMP_AHEAD, PREFIX_CACHE

if TYPE_CHECKING:
    from tidemill.models.model import Model
    from tidemill.models.rounding_check import ExactAnswers
    from tidemill.text.tokenizer import Tokenizer

__all__ = ["build_loop", "kv_space"]

_log = logging.getLogger(__name__)


def build_loop(config: EngineConfig) -> EngineLoop:
    """Load the model and make everything a loop needs. Raises ModelLoadError for files that are missing or damaged,
    DoesNotFit for what the memory cannot hold, and ConfigError for a setting that cannot have its value."""
    # Imported here: whoever only talks to an engine process needs none of these.
    from tidemill.executors.factory import make_executor
    from tidemill.graph.passes.fuse import fuse
    from tidemill.models.loading import load_model
    from tidemill.models.memory_plan import plan_memory
    from tidemill.text.grammars import Grammars

    if config.block_size not in BLOCK_SIZES:
        raise ConfigError(f"block_size must be one of {BLOCK_SIZES}, not {config.block_size}", param="block_size")
    check_settings(config.scheduler)
    check_kv_events(config)
    begin = time.monotonic()
    model = load_model(config.model)
    available = available_memory()
    draft = load_draft(config, model, available)
    plan = plan_memory(model, config, available, draft=draft.plan.total if draft else 0)
    check = _exact_answers(model, config) if config.model.quantize else None
    pools = plan.pools()
    space = kv_space(pools, model.graph.kv_groups)
    scheduler = Scheduler(_suited(config.scheduler, model), space, copies=True)
    keys = BlockKeys(space.block_size)
    kv_events = _kv_publisher(config, keys, space)
    places = config.model.adapter_places
    executor = make_executor(fuse(model.graph), model.weights, config.executor, adapters=places > 0)
    _allocate_kv(model, config, executor, pools)
    adapters = _adapters(executor, model, config.model) if places else None
    if check is not None:
        print(check.report(executor, pools), file=sys.stderr, flush=True)
    return EngineLoop(
        executor=executor,
        scheduler=scheduler,
        info=EngineInfo(
            model=model.name,
            vocab_size=model.vocab_size,
            max_model_len=plan.max_model_len,
            kv_capacity_tokens=_capacity(space, plan.max_model_len),
            end_token_ids=model.end_token_ids,
            embedding=model.embedding,
            order=criteria_of(config.scheduler.order),
            strategies=_chosen_per_request(scheduler),
            executor=executor.description,
            kv_format=plan.kv_format,
            kv_bytes_per_token=plan.kv_bytes_per_token,
        ),
        strict=config.strict,
        load_seconds=time.monotonic() - begin,
        memory=MemoryGauge(plan.total),
        keep_speed=None if config.executor.packed_cache == "off" else _keeper(config, executor.description),
        profiler=_profiler(config, executor),
        kv_groups=[group.name for group in model.graph.kv_groups],
        keys=keys,
        kv_events=kv_events,
        adapters=adapters,
        proposers=proposers_of(
            config.scheduler,
            draft.proposer(model, lambda: scheduler.config.prefix_cache_ttl) if draft else None,
        ),
        lengths=lengths_of(config.scheduler),
        rejection=RejectionSampling() if config.scheduler.speculate_accept == "rejection" else None,
        grammars=Grammars(lambda: _tokenizer(model), model.vocab_size, model.end_token_ids),
    )


def _adapters(executor: Executor, model: Model, config: ModelConfig) -> Adapters:
    """Those that the settings name, loaded, and room for more. Raises ConfigError for a model that gives vectors."""
    from tidemill.models.loading.adapter import load_adapter, other_base

    if model.embedding is not None:
        raise ConfigError(f"{model.name} gives vectors of texts; adapters are for models that generate", param="lora")

    def read(source: AdapterSource) -> Adapter:
        loaded = load_adapter(Path(source.path).expanduser(), model, max_rank=config.max_lora_rank)
        if other_base(loaded.base, model.name, config.path):
            _log.warning("adapter %s was trained on %s, by its files; this is %s", source.name, loaded.base, model.name)
        return loaded.adapter

    adapters = Adapters(executor, read, most=config.adapter_places, model=model.name)
    for source in adapter_sources(config.lora):
        try:
            adapters.add(source.name, read(source))
        except InvalidRequest as error:
            raise ConfigError(f"lora: {error.message}", param="lora") from error
    return adapters


def _kv_publisher(config: EngineConfig, keys: BlockKeys, space: KvSpace) -> KvPublisher | None:
    if config.kv_events_endpoint is None:
        return None
    windows = [layout.window for layout in space.layouts]
    coder = KvEventCoder(keys, block_size=space.block_size, windows=windows, form=config.kv_events_format)
    return KvPublisher(config, coder.batch)


def _suited(config: SchedulerConfig, model: Model) -> SchedulerConfig:
    """The settings that a model can have: a vector that needs all tokens of a text at once is never cut, and texts
    whose vectors are asked for are never padded."""
    if model.graph.whole:
        config = replace(config, chunked_prefill=False)
    if model.embedding is not None and config.policy == "static":
        config = replace(config, policy="static-compacted")
    return config


def _allocate_kv(model: Model, config: EngineConfig, executor: Executor, pools: Sequence[KvPoolSpec]) -> None:
    """Make the pools; whether the model stands whole numbers in them is tried first."""
    if config.executor.kv_check == 0 or not KvFormat(config.executor.resolved_kv_format).quantized:
        executor.allocate_kv(pools)
        return
    from tidemill.models.kv_check import compare_kv  # brings a tokenizer: loaded for who compares

    try:
        print(compare_kv(model, config.executor, executor, pools).verdict(config.executor), file=sys.stderr, flush=True)
    except BaseException:
        executor.close()
        raise


def _exact_answers(model: Model, config: EngineConfig) -> ExactAnswers | None:
    from tidemill.models.rounding_check import exact_answers  # brings a tokenizer: loaded for who rounds

    return exact_answers(model, config, available_memory())


def _tokenizer(model: Model) -> Tokenizer:
    from tidemill.text.tokenizer import build_tokenizer

    return build_tokenizer(model.text)


def _keeper(config: EngineConfig, executor: str) -> Callable[[EngineStats, Speed], None]:
    """Keeps what a loop measured, for ``tidemill models info``."""
    from tidemill.models.measured import Measurement, keep_measurement, machine_name

    def keep(stats: EngineStats, speed: Speed) -> None:
        new = Measurement(
            machine=machine_name(read_machine()),
            executor=executor,
            load_seconds=stats.load_seconds,
            from_cache=stats.packed_cache_bytes > 0,
            prefill=speed.prefill,
            decode=speed.decode,
            when=time.time(),
        )
        keep_measurement(Path(config.model.path), new, config.executor.cache_dir)

    return keep


def _profiler(config: EngineConfig, executor: Executor) -> StepProfiler:
    """Raises ConfigError for profile_every with an executor that takes no times."""
    every = config.profile_every
    if every < 0:
        raise ConfigError(f"profile_every must be 0 or more, not {every}", param="profile_every")
    if every == 0:
        return StepProfiler()
    return StepProfiler(every, executor.measure_roof())


def kv_space(pools: Sequence[KvPoolSpec], groups: Sequence[KvGroup]) -> KvSpace:
    """The bookkeeping of an executor's pools, one per group of the graph, in its order."""
    return KvSpace(
        [
            KvGroupSpace(num_blocks=pool.num_blocks, block_size=pool.block_size, window=group.window)
            for pool, group in zip(pools, groups, strict=True)
        ]
    )


def _chosen_per_request(scheduler: Scheduler) -> tuple[str, ...]:
    """The strategies that are on and that a request may go without."""
    found = [PREFIX_CACHE.name] if scheduler.shares_blocks else []
    if scheduler.config.jump_ahead == "on":
        found.append(JUMP_AHEAD.name)
    return (*found, *map(strategy_name, speculation_kinds(scheduler.config.speculate)))


def _capacity(space: KvSpace, max_model_len: int) -> int:
    """What one sequence can have in the pools. Where windows set no bound, nothing beyond the model's length counts."""
    return max_model_len if space.capacity_tokens == UNBOUNDED_TOKENS else space.capacity_tokens

"""The part of the memory that a draft model takes beside its target."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tidemill.core.config import EngineConfig, ModelConfig
from tidemill.models.memory_plan import MemoryPlan, plan_memory
from tidemill.models.model import Model
from tidemill.models.shape import ModelShape, read_shape
from tidemill.scheduling.speculation_kinds import draft_path

__all__ = ["draft_bytes", "draft_config", "plan_draft"]

_KV_SHARE: Final = 8
"""The draft model's KV takes at most this part of the memory: what does not fit is computed again."""


def draft_config(config: EngineConfig, path: str) -> EngineConfig:
    """The settings of the draft model: the target's, as far as they are not about the target."""
    return replace(config, model=ModelConfig(path=path), kv_memory=None)


def plan_draft(draft: Model | ModelShape, config: EngineConfig, available: int) -> MemoryPlan:
    """The draft model's own plan, with its settings. Raises DoesNotFit."""
    shape = _without_windows(draft if isinstance(draft, ModelShape) else ModelShape.of(draft))
    plan = plan_memory(shape, config, available)
    if plan.kv_bytes > available // _KV_SHARE:
        plan = plan_memory(shape, replace(config, kv_memory=available // _KV_SHARE), available)
    return plan


def _without_windows(shape: ModelShape) -> ModelShape:
    """The same model with room for whole sequences in every KV group: a draft model does not slide its windows, and
    the smallest pool would bound how far into a text it guesses."""
    groups = tuple(replace(group, window=None) for group in shape.graph.kv_groups)
    return replace(shape, graph=replace(shape.graph, kv_groups=groups))


def draft_bytes(config: EngineConfig, available: int) -> int:
    """Bytes that the draft model takes which the settings name; 0: they name none. Raises ModelLoadError for its files,
    and DoesNotFit."""
    path = draft_path(config.scheduler.speculate)
    if path is None:
        return 0
    own = draft_config(config, path)
    return plan_draft(read_shape(own.model), own, available).total

"""Draft models for tests, made in memory."""

from __future__ import annotations

from typing import Any

from tests.support.tiny import Rig, TinyModel
from tidemill.core.config import ExecutorConfig
from tidemill.engine.draft_model import DraftModelProposer
from tidemill.engine.draft_places import DraftPlaces
from tidemill.scheduling.kv.space import KvGroupSpace, KvSpace

__all__ = ["draft_proposer"]


def draft_proposer(
    draft: TinyModel,
    *,
    vocab_size: int,
    num_blocks: int = 256,
    executor: ExecutorConfig | None = None,
    places: dict[str, Any] | None = None,
    **changes: Any,
) -> DraftModelProposer:
    """A tiny model that guesses for a target with so many tokens; it has blocks of 16 tokens, in each KV group as many.
    ``changes``: of what DraftModelProposer is made with, and ``places`` what DraftPlaces is."""
    rig = Rig(model=draft, num_blocks=num_blocks, executor=executor or ExecutorConfig(threads=1))
    groups = [KvGroupSpace(num_blocks=num_blocks, block_size=rig.block_size) for _ in draft.graph.kv_groups]
    settings = {"max_step_tokens": 512, "max_tokens": 1024, "vocab_size": vocab_size, "masked": True}
    made = DraftPlaces(KvSpace(groups), **places or {})
    return DraftModelProposer(rig.make_executor(), made, **settings | changes)

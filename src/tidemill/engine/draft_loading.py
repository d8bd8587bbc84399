"""A draft model from its files: whether it fits the target, and its part of the memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill.core.config import EngineConfig
from tidemill.core.errors import ConfigError
from tidemill.engine.draft_model import DraftModelProposer
from tidemill.engine.draft_places import DraftPlaces
from tidemill.scheduling.kv.space import KvGroupSpace, KvSpace
from tidemill.scheduling.speculation_kinds import draft_path

if TYPE_CHECKING:
    from tidemill.models.memory_plan import MemoryPlan
    from tidemill.models.model import Model

__all__ = ["LoadedDraft", "load_draft"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedDraft:
    """A draft model that fits, before it has an executor."""

    model: Model
    plan: MemoryPlan
    config: EngineConfig

    def proposer(self, target: Model, expiry_seconds: Callable[[], float]) -> DraftModelProposer:
        """The model, ready to guess. Takes its memory. ``expiry_seconds``: see DraftPlaces."""
        from tidemill.executors.factory import make_executor
        from tidemill.graph.passes.fuse import fuse

        pools = self.plan.pools()
        executor = make_executor(fuse(self.model.graph), self.model.weights, self.config.executor)
        executor.allocate_kv(pools)
        # Windows are not slid here: each group holds a sequence whole.
        groups = [KvGroupSpace(num_blocks=pool.num_blocks, block_size=pool.block_size) for pool in pools]
        return DraftModelProposer(
            executor,
            DraftPlaces(KvSpace(groups), expiry_seconds=expiry_seconds),
            max_step_tokens=self.config.scheduler.max_step_tokens,
            max_tokens=self.model.max_position,
            vocab_size=target.vocab_size,
            masked=target.vocab_size == self.model.vocab_size,
            rejection=self.config.scheduler.speculate_accept == "rejection",
        )


def load_draft(config: EngineConfig, target: Model, available: int) -> LoadedDraft | None:
    """The draft model that the settings name; None: they name none. ``available``: bytes of memory there are for both.

    Raises ModelLoadError for files that cannot be read, DoesNotFit for what the memory cannot hold, and ConfigError for
    a model with another tokenizer than the target's, or that makes vectors.
    """
    from tidemill.models.draft_plan import draft_config, plan_draft
    from tidemill.models.loading import load_model

    path = draft_path(config.scheduler.speculate)
    if path is None:
        return None
    own = draft_config(config, path)
    model = load_model(own.model)
    if model.embedding is not None:
        raise ConfigError(f"speculate: {model.name} makes vectors; a draft model writes text", param="speculate")
    _check_tokenizer(model, target)
    return LoadedDraft(model=model, plan=plan_draft(model, own, available), config=own)


def _check_tokenizer(draft: Model, target: Model) -> None:
    from tidemill.text.tokenizer import build_tokenizer

    own, other = build_tokenizer(draft.text), build_tokenizer(target.text)
    for token in range(min(own.vocab_size, other.vocab_size)):
        if own.token_bytes(token) != other.token_bytes(token):
            raise ConfigError(
                f"speculate: {draft.name} has another tokenizer than {target.name}: token {token} is "
                f"{own.token_text(token)!r} there and {other.token_text(token)!r} here; take one of the same family",
                param="speculate",
            )
    if own.vocab_size != other.vocab_size:
        raise ConfigError(
            f"speculate: {draft.name} has another tokenizer than {target.name}: it has {own.vocab_size} tokens, and "
            f"this one {other.vocab_size}; take one of the same family",
            param="speculate",
        )

"""What the scheduler knows of one sequence: counters, a block table and the keys of its blocks, no token ids.

0 ............ num_prompt ........... num_tokens ...... num_tokens + num_proposed
|--- prompt ---|------- output -------|--- proposals ---|
|------ num_computed ------>|-------- pending ----------|
  their KV is in the blocks   what steps still have to compute
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from tidemill.core.step import SequenceId
from tidemill.scheduling.kv.cache import BlockKey
from tidemill.scheduling.kv.space import BlockTables

__all__ = ["SequenceCounters", "SequenceState"]


class SequenceState(Enum):
    """Where a sequence is."""

    NEW = "new"
    """Not with a scheduler yet."""
    WAITING = "waiting"
    """In the queue; holds no blocks."""
    RUNNING = "running"
    """Gets tokens and holds blocks."""
    LEAVING = "leaving"
    """Aborted while a step with it is in flight; its blocks come back when the step ends."""
    GONE = "gone"
    """Finished or aborted; holds no blocks."""


@dataclass(slots=True, kw_only=True, eq=False)
class SequenceCounters:
    """One sequence. The scheduler changes it; others read."""

    id: SequenceId
    num_prompt: int
    """Tokens of the prompt, at least one."""
    max_tokens: int
    """Most tokens to generate, at least one."""
    num_tokens: int = 0
    """Prompt and output so far."""
    num_computed: int = 0
    """Tokens whose KV is in the blocks."""
    num_proposed: int = 0
    """Tokens proposed to follow, to be verified in the next step."""
    num_adopted: int = 0
    """Tokens of the prompt whose KV came from the cache when it was first read."""
    num_preemptions: int = 0
    arrival: int = -1
    """Number in the order of arrival, given by the scheduler."""
    arrived: float = 0.0
    """When that was, on the scheduler's clock."""
    scored: bool = False
    """The tokens of the prompt are still to be scored: every position that a step computes of it is an output."""
    state: SequenceState = SequenceState.NEW
    tables: BlockTables = field(default_factory=tuple)
    keys: list[BlockKey] = field(default_factory=list)
    """One per full block of the tokens there are, in order, put there by whoever has the tokens. Without keys a
    sequence shares nothing."""
    tail: BlockKey | None = None
    """Like keys, for the prompt's tokens behind its last full block."""
    cache_age: int = -1
    """How often the cache had been cleared when the sequence took its first block."""

    def __post_init__(self) -> None:
        if self.num_prompt < 1 or self.max_tokens < 1:
            raise ValueError(f"sequence {self.id}: prompt {self.num_prompt}, max_tokens {self.max_tokens}")
        self.num_tokens = self.num_tokens or self.num_prompt

    @property
    def num_pending(self) -> int:
        """Tokens that steps still have to compute, proposals included."""
        return self.num_tokens + self.num_proposed - self.num_computed

    @property
    def caught_up(self) -> bool:
        """True if only the newest token (and proposals behind it) has to be computed: what is called decoding."""
        return self.num_computed == self.num_tokens - 1

    @property
    def max_kv_tokens(self) -> int:
        """Most tokens that will ever be in the KV: the last token drawn is never computed."""
        return self.num_prompt + self.max_tokens - 1

"""What the scheduler knows of one sequence: counters, a block table and the keys of its blocks, no token ids.

0 ............ num_prompt ........... num_tokens ...... num_tokens + num_proposed
|--- prompt ---|------- output -------|--- proposals ---|
|------ num_computed ------>|-------- pending ----------|
  their KV is in the blocks   what steps still have to compute

The states, and who may follow whom (``become`` allows nothing else):

    NEW --add--> WAITING --admitted--> RUNNING --removed, in a step in flight--> LEAVING
                  ^  |                  |   |                                       |
                  |  |     preempted    |   |                                       |
                  +--|------------------+   |                                       |
                     +------removed---------+--------------removed----------------> GONE
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from tidemill.core.step import SequenceId
from tidemill.scheduling.kv.cache import BlockKey
from tidemill.scheduling.kv.space import BlockTables

__all__ = ["SequenceCounters", "SequenceState", "Standing"]


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


_MAY_FOLLOW: Final[Mapping[SequenceState, frozenset[SequenceState]]] = {
    SequenceState.NEW: frozenset({SequenceState.WAITING}),
    SequenceState.WAITING: frozenset({SequenceState.RUNNING, SequenceState.GONE}),
    SequenceState.RUNNING: frozenset({SequenceState.WAITING, SequenceState.LEAVING, SequenceState.GONE}),
    SequenceState.LEAVING: frozenset({SequenceState.GONE}),
    SequenceState.GONE: frozenset(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What a sequence's place in the queue may depend on, besides when it came. Whoever has the request says it."""

    priority: int = 0
    """Lower is earlier."""
    tenant: str = ""
    """Who has to share with others."""
    weight: float = 1.0
    """The tenant's share beside others', above 0."""
    deadline: float | None = None
    """When it is of no use any more, on the scheduler's clock; None: never."""
    expected_tokens: int | None = None
    """How many tokens the caller expects of the answer."""
    least_tokens: int = 1
    """Tokens of the answer without which it is of no use at its deadline."""
    templates: tuple[Hashable, ...] = ()
    """What its prompt has in common with those of others whose answers may be as long, the most particular first."""


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
    num_lost: int = 0
    """Computed tokens that its last preemption gave up."""
    arrival: int = -1
    """Number in the order of arrival, given by the scheduler."""
    arrived: float = 0.0
    """When that was, on the scheduler's clock."""
    standing: Standing = field(default_factory=Standing)
    seniority: tuple[float, int] = (0.0, -1)
    """Its place in the queue where nothing else counts: when it came, later by its priority. Never changes."""
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

    def become(self, state: SequenceState) -> None:
        """Go to another state. AssertionError for a way that there is not."""
        allowed = state in _MAY_FOLLOW[self.state]
        assert allowed, f"sequence {self.id} is {self.state.value} and cannot become {state.value}"
        self.state = state

    @property
    def num_pending(self) -> int:
        """Tokens that steps still have to compute, proposals included."""
        return self.num_tokens + self.num_proposed - self.num_computed

    @property
    def num_output(self) -> int:
        """Tokens generated so far."""
        return self.num_tokens - self.num_prompt

    @property
    def caught_up(self) -> bool:
        """True if only the newest token (and proposals behind it) has to be computed: what is called decoding."""
        return self.num_computed == self.num_tokens - 1

    @property
    def max_kv_tokens(self) -> int:
        """Most tokens that will ever be in the KV: the last token drawn is never computed."""
        return self.num_prompt + self.max_tokens - 1

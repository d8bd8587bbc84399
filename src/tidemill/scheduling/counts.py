"""What the scheduler counts, for metrics."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SchedulerCounts"]


@dataclass(slots=True, kw_only=True)
class SchedulerCounts:
    """Totals since the start, and the state of now."""

    preemptions: int = 0
    preempted_tokens: int = 0
    """Computed tokens that preempted sequences had."""
    places_taken: int = 0
    """Preemptions by which a better priority got the place."""
    hopeless: int = 0
    """Sequences that were let go because they could not make their deadlines."""
    overtakes: int = 0
    """How often one was let in before a more senior one."""
    longest_overtake: float = 0.0
    """The most seconds of seniority that lay between them."""
    service_spread: float = 0.0
    """Tokens, by weight, that the tenants who are there have been given: the most less the least."""
    step_budget: int = 0
    """Most tokens of the latest step."""
    most_running: int = 0
    """Most sequences that may run."""

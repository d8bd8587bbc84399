"""What a request says about the reasoning before an answer."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["AS_IT_IS", "ReasoningBudget", "ReasoningOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningOptions:
    """As the caller put it; None: as the model's template has it."""

    effort: str | None = None
    """How much of it, for templates that read that; none: no reasoning."""
    enabled: bool | None = None
    budget: int | None = None
    """Most tokens of it."""
    effort_field: str = "reasoning_effort"
    """What the caller called that, and the others."""
    enabled_field: str = "reasoning_effort"
    budget_field: str = "thinking_budget"


AS_IT_IS = ReasoningOptions()
"""Nothing is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningBudget:
    """Where an answer's reasoning is, in tokens, and how long it may be."""

    tokens: int
    """Most tokens between the two marks."""
    open: int
    """The token that begins it."""
    close: int
    """The token that ends it, which is drawn where it has not come by itself."""
    opened: bool
    """The prompt ends within the reasoning."""

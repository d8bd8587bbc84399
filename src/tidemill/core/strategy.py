"""The registry of strategies: every optimisation is a switch with a meter.

A strategy that lacks one of these lines does not ship; a test walks the registry and checks each of them.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["STRATEGIES", "Strategy", "register"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """One optimisation that can be turned off, measured alone, and kept only where it pays."""

    name: str
    """Short name in kebab-case, for example ``continuous-batching``."""
    setting: str
    """The field of the configuration that switches it, as ``SchedulerConfig.policy``."""
    baseline: str
    """The setting's value that turns it off: the slow twin."""
    metric: str
    """The metric that shows what it does."""
    when: str
    """The rule for when to use it, in one sentence."""
    doc: str
    """Its page under docs/, as a path relative to that folder."""


STRATEGIES: dict[str, Strategy] = {}


def register(strategy: Strategy) -> Strategy:
    """Add a strategy to the registry; a name can be taken once."""
    if strategy.name in STRATEGIES:
        raise ValueError(f"strategy {strategy.name} is registered twice")
    STRATEGIES[strategy.name] = strategy
    return strategy

"""The registry of strategies: every optimisation is a switch with a meter.

A strategy that lacks one of these lines does not ship; a test walks the registry and checks each of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

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
    on: str = ""
    """The value that is compared with the twin where that is not the setting's default: it suits some loads only, and
    is off until somebody turns it on."""
    why: str
    """What the twin pays for and this does not, in one sentence: the line below its row in the ablation."""
    metric: str
    """The metric that shows what it does."""
    when: str
    """The rule for when to use it, in one sentence."""
    doc: str
    """Its page under docs/, as a path relative to that folder."""
    between: Mapping[str, str] = field(default_factory=dict)
    """Further values of the setting, from the twin's side on, each with its own sentence: each gets a row."""
    alone: tuple[str, ...] = ()
    """Strategies that its twin cannot have: they are off on both sides where it is measured."""
    acts: Literal["steps", "start"] = "steps"
    """steps: it changes how requests are served, and the ablation measures that; start: only how an engine starts."""
    per_request: bool = False
    """A request may go without it, where the engine has it on; its setting is then ``on`` or ``off``."""


STRATEGIES: dict[str, Strategy] = {}


def register(strategy: Strategy) -> Strategy:
    """Add a strategy to the registry; a name can be taken once."""
    if strategy.name in STRATEGIES:
        raise ValueError(f"strategy {strategy.name} is registered twice")
    STRATEGIES[strategy.name] = strategy
    return strategy

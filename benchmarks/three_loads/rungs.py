"""From continuous batching alone to everything, a strategy at a time.

Alone is iteration-level scheduling as Yu et al. have it (Orca, OSDI 2022): prompts are read whole, room for the most
that an answer may have is taken at the start, nothing is shared, who came first is first. Kernels are the same on every
rung: they are no system control.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from tidemill.core.config import EngineConfig, SchedulerConfig

__all__ = ["RUNGS", "configured"]

_ALONE: Final[dict[str, Any]] = {
    "chunked_prefill": False,
    "kv_reservation": "contiguous",
    "prefix_cache": "off",
    "preempted_blocks": "drop",
    "jump_ahead": "off",
    "max_step_tokens": 128,
}
_STEPS: Final[dict[str, dict[str, Any]]] = {
    "alone": _ALONE,
    "+ paged": {"kv_reservation": "paged"},
    "+ chunked": {"chunked_prefill": True},
    "+ prefix": {"prefix_cache": "on", "preempted_blocks": "keep", "victim": "least-work"},
    "+ paced": {"itl_target": 0.1, "max_step_tokens": 512},
    "+ order": {"order": "srf"},
    "all": {"speculate": "ngram,suffix", "jump_ahead": "on"},
}
RUNGS: Final = tuple(_STEPS)


def configured(config: EngineConfig, rung: str) -> EngineConfig:
    """The engine on a rung: what the rungs below it have turned on, and its own."""
    settings: dict[str, Any] = {}
    for name, own in _STEPS.items():
        settings |= own
        if name == rung:
            return replace(config, scheduler=SchedulerConfig(max_waiting=10**6, **settings))
    raise KeyError(rung)

"""Settings with which nothing would ever run."""

from __future__ import annotations

import math

from tidemill.core.config import SchedulerConfig
from tidemill.core.errors import ConfigError
from tidemill.scheduling.criteria import criteria_of
from tidemill.scheduling.speculation_kinds import speculation_kinds

__all__ = ["check_settings"]


def check_settings(config: SchedulerConfig) -> None:
    """Raise ConfigError for them."""
    at_least_one = ("max_running", "max_step_tokens", "max_waiting", "batch_size", "speculate_tokens")
    for name in (*at_least_one, "speculate_suffix_tokens"):
        if getattr(config, name) < 1:
            raise ConfigError(f"{name} must be at least 1, not {getattr(config, name)}", param=name)
    for name in ("prefix_cache_ttl", "batch_wait", "order_patience", "itl_target"):
        seconds = getattr(config, name)
        if not 0 <= seconds < math.inf:
            raise ConfigError(f"{name} must be 0 or more seconds, not {seconds}", param=name)
    if config.fair_credit < 0:
        raise ConfigError(f"fair_credit must be 0 or more tokens, not {config.fair_credit}", param="fair_credit")
    if not 0 <= config.prefill_share <= 1:
        raise ConfigError(f"prefill_share must be between 0 and 1, not {config.prefill_share}", param="prefill_share")
    criteria_of(config.order)
    speculation_kinds(config.speculate)

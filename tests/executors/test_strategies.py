"""What executors offer is in the registry, on by default."""

from __future__ import annotations

from tidemill.core.config import ExecutorConfig
from tidemill.core.settings import settings_of
from tidemill.core.strategy import STRATEGIES
from tidemill.executors import strategies


def test_tiled_attention_is_registered_with_its_slow_twin() -> None:
    one = strategies.TILED_ATTENTION
    assert STRATEGIES[one.name] is one
    owner, _, name = one.setting.partition(".")
    assert owner == ExecutorConfig.__name__
    setting = settings_of(ExecutorConfig)[name]
    assert one.baseline in setting.choices
    assert setting.default != one.baseline

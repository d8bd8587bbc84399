"""What executors offer is in the registry, on by default."""

from __future__ import annotations

import pytest

from tidemill.core.config import ExecutorConfig
from tidemill.core.settings import settings_of
from tidemill.core.strategy import STRATEGIES, Strategy
from tidemill.executors import strategies


@pytest.mark.parametrize("one", [strategies.TILED_ATTENTION, strategies.PACKED_CACHE], ids=lambda one: one.name)
def test_strategy_is_registered_with_its_slow_twin(one: Strategy) -> None:
    assert STRATEGIES[one.name] is one
    owner, _, name = one.setting.partition(".")
    assert owner == ExecutorConfig.__name__
    setting = settings_of(ExecutorConfig)[name]
    assert one.baseline in setting.choices
    assert setting.default != one.baseline

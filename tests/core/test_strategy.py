"""Every strategy that is registered can be turned off, measured and explained."""

from __future__ import annotations

from dataclasses import replace

import pytest

import tidemill.executors.strategies
import tidemill.scheduling.strategies  # noqa: F401 (both fill the registry)
from tidemill.core.config import EngineConfig, ExecutorConfig, ModelConfig, SchedulerConfig
from tidemill.core.settings import settings_of
from tidemill.core.strategy import STRATEGIES, Strategy, register

ANY = pytest.mark.parametrize("one", STRATEGIES.values(), ids=lambda one: one.name)


@ANY
def test_its_baseline_and_what_lies_between_are_values_of_its_setting_and_no_defaults(one: Strategy) -> None:
    setting = settings_of(ModelConfig, ExecutorConfig, SchedulerConfig, EngineConfig)[one.setting.split(".")[1]]
    assert one.setting == f"{setting.owner.__name__}.{setting.name}"
    values = (one.baseline, *one.between)
    assert len(set(values)) == len(values)
    assert one.on not in values
    assert str(setting.default) == one.baseline if one.on else str(setting.default) not in values
    if setting.choices:
        assert set(values) <= set(setting.choices)


@ANY
def test_it_is_explained_in_sentences(one: Strategy) -> None:
    for text in (one.why, one.when, *one.between.values()):
        assert len(text) > 20
        assert text.endswith(".")


@ANY
def test_what_its_twin_cannot_have_is_registered_too(one: Strategy) -> None:
    assert set(one.alone) <= set(STRATEGIES) - {one.name}


def test_a_name_is_taken_once() -> None:
    with pytest.raises(ValueError, match="registered twice"):
        register(replace(STRATEGIES["paged-kv"], why="Another."))

"""Which configurations the ablation compares."""

from __future__ import annotations

from dataclasses import replace

import pytest

import tidemill.executors.strategies
import tidemill.scheduling.strategies  # noqa: F401 (both fill the registry)
from tidemill.bench.ablation.contests import Contest, chosen, chosen_contests, configurations, contests
from tidemill.core.config import EngineConfig, ExecutorConfig, ModelConfig, SchedulerConfig
from tidemill.core.errors import ConfigError
from tidemill.core.strategy import STRATEGIES

DEFAULT = EngineConfig(model=ModelConfig(path="m.gguf"))


def rows(*names: str, config: EngineConfig = DEFAULT) -> dict[str, Contest]:
    return {row.name: row for row in contests(config, chosen(names))}


def test_every_strategy_that_acts_on_steps_has_its_rows_and_all_together_are_the_last() -> None:
    made = rows()
    expected = [
        f"{one.name} ({'off' if value == 'False' else value})"
        for one in sorted(STRATEGIES.values(), key=lambda one: "SchedulerConfig" not in one.setting)
        if one.acts == "steps" and not one.on
        for value in (one.baseline, *one.between)
    ]
    assert list(made) == [*expected, "all together"]
    assert "continuous-batching (static)" in made
    assert "continuous-batching (dynamic)" in made
    assert not any("packed-cache" in name for name in made)


def test_a_row_differs_in_its_setting_alone() -> None:
    row = rows()["continuous-batching (dynamic)"]
    assert row.on == DEFAULT
    assert row.off == replace(DEFAULT, scheduler=SchedulerConfig(policy="dynamic"))
    row = rows()["chunked-prefill (off)"]
    assert row.off == replace(DEFAULT, scheduler=SchedulerConfig(chunked_prefill=False))
    row = rows()["tiled-attention (materialized)"]
    assert row.off == replace(DEFAULT, executor=ExecutorConfig(attention="materialized"))


def test_what_is_off_by_default_is_compared_when_it_is_named_and_changes_no_other_row() -> None:
    made = rows("shortest-first", "paced-steps", "paged-kv", "chunked-prefill")
    row = made["shortest-first (fcfs)"]
    assert row.on == replace(DEFAULT, scheduler=SchedulerConfig(order="srf"))
    assert row.off == DEFAULT
    assert made["paced-steps (0.0)"].on == replace(DEFAULT, scheduler=SchedulerConfig(itl_target=0.1))
    assert made["all together"].on == DEFAULT


def test_what_a_twin_cannot_have_is_off_on_both_sides() -> None:
    row = rows()["paged-kv (contiguous)"]
    assert (row.on.scheduler.kv_reservation, row.on.scheduler.prefix_cache) == ("paged", "off")
    assert (row.off.scheduler.kv_reservation, row.off.scheduler.prefix_cache) == ("contiguous", "off")


def test_all_together_is_everything_on_against_every_twin() -> None:
    row = rows()["all together"]
    assert row.on == DEFAULT
    assert row.off == replace(
        DEFAULT,
        executor=ExecutorConfig(attention="materialized", numerics="exact"),
        scheduler=SchedulerConfig(
            policy="static",
            chunked_prefill=False,
            kv_reservation="contiguous",
            prefix_cache="off",
            jump_ahead="off",
            preempted_blocks="drop",
        ),
    )


def test_of_some_strategies_the_others_stay_as_they_are() -> None:
    config = replace(DEFAULT, scheduler=SchedulerConfig(prefix_cache="off", max_step_tokens=64))
    made = rows("continuous-batching", config=config)
    assert list(made) == [f"continuous-batching ({value})" for value in ("static", "static-compacted", "dynamic")]
    assert {(row.on.scheduler.prefix_cache, row.off.scheduler.max_step_tokens) for row in made.values()} == {
        ("off", 64)
    }


@pytest.mark.parametrize("policy", ["static", "dynamic"])
def test_a_strategy_that_the_caller_turned_off_is_turned_on_to_be_measured(policy: str) -> None:
    config = replace(DEFAULT, scheduler=SchedulerConfig(policy=policy))  # type: ignore[arg-type]
    assert rows("continuous-batching", config=config)["continuous-batching (static)"].on == DEFAULT


def test_each_configuration_is_measured_once() -> None:
    made = rows()
    listed = configurations(made.values())
    assert len(listed) == len(set(listed)) < 2 * len(made)
    assert listed.count(DEFAULT) == 1


def test_a_row_is_chosen_by_its_twin() -> None:
    def names(*wanted: str) -> list[str]:
        return [row.name for row in chosen_contests(DEFAULT, wanted)]

    assert names("continuous-batching=dynamic") == ["continuous-batching (dynamic)"]
    assert names("continuous-batching=static", "continuous-batching=dynamic") == [
        "continuous-batching (static)",
        "continuous-batching (dynamic)",
    ]
    both = names("continuous-batching=static", "chunked-prefill=off")
    assert both == ["continuous-batching (static)", "chunked-prefill (off)", "all together"]
    assert names("continuous-batching") == [row.name for row in contests(DEFAULT, chosen(["continuous-batching"]))]
    with pytest.raises(ConfigError, match="has no row for eager; it has: static, static-compacted, dynamic"):
        names("continuous-batching=eager")


@pytest.mark.parametrize(
    ("name", "said"), [("paging", "there is no strategy paging"), ("packed-cache", "load_seconds")]
)
def test_names_without_a_row_are_refused(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        chosen([name])


def test_a_strategy_whose_value_has_a_path_takes_the_configurations_own() -> None:
    config = EngineConfig(model=ModelConfig(path="m"), scheduler=SchedulerConfig(speculate="draft:small.gguf"))
    (row,) = contests(config, chosen(["draft-speculation"]))
    assert (row.off.scheduler.speculate, row.on.scheduler.speculate) == ("off", "draft:small.gguf")
    (row,) = contests(config, chosen(["ngram-speculation"]))
    assert (row.off.scheduler.speculate, row.on.scheduler.speculate) == ("off", "ngram")
    plain = EngineConfig(model=ModelConfig(path="m"))
    with pytest.raises(ConfigError, match="draft-speculation needs to know what to compare: --speculate draft:PATH"):
        contests(plain, chosen(["draft-speculation"]))

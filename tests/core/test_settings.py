"""Settings by their bare names: found, checked, and put where they belong."""

from __future__ import annotations

from typing import Any

import pytest

from tidemill.core.config import (
    EngineConfig,
    ExecutorConfig,
    ModelConfig,
    SchedulerConfig,
    ServerConfig,
)
from tidemill.core.errors import ConfigError
from tidemill.core.settings import engine_config, server_config, settings_of

ENGINE = (ModelConfig, ExecutorConfig, SchedulerConfig, EngineConfig)


def test_nothing_named_means_the_defaults() -> None:
    assert engine_config("m.gguf", {}) == EngineConfig(model=ModelConfig(path="m.gguf"))
    assert server_config({}) == ServerConfig()


def test_each_setting_lands_in_its_own_dataclass() -> None:
    config = engine_config(
        "org/name",
        {"max_model_len": 2048, "numerics": "exact", "max_running": 8, "block_size": 32, "strict": True},
    )
    assert config == EngineConfig(
        model=ModelConfig(path="org/name", max_model_len=2048),
        executor=ExecutorConfig(numerics="exact"),
        scheduler=SchedulerConfig(max_running=8),
        block_size=32,
        strict=True,
    )


def test_a_misspelt_name_gets_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r"no setting max_runing; did you mean max_running\?") as caught:
        engine_config("m", {"max_runing": 8})
    assert caught.value.param == "max_runing"


def test_a_name_like_no_other_gets_the_list() -> None:
    with pytest.raises(
        ConfigError, match=r"no setting zzz; there are: name, chat_template, merge_turns, max_model_len"
    ):
        engine_config("m", {"zzz": 8})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("max_running", 0, "max_running must be between 1 and 4096, not 0"),
        ("max_running", "8", "max_running must be a whole number, not '8'"),
        ("max_running", True, "max_running must be a whole number, not True"),
        ("max_running", 2.0, "max_running must be a whole number, not 2.0"),
        ("max_running", None, "max_running must be a whole number, not None"),
        ("threads", 0, "threads must be between 1 and 1024, not 0"),
        ("block_size", 20, "block_size must be one of 16, 32, 64, not 20"),
        ("numerics", "slow", "numerics must be one of fast, exact, not 'slow'"),
        ("chunked_prefill", 1, "chunked_prefill must be true or false, not 1"),
        ("kv_memory", -1, "kv_memory must be between 1 and"),
        ("name", 3, "name must be text, not 3"),
    ],
)
def test_a_value_it_cannot_have_is_refused_with_the_fix(name: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        engine_config("m", {name: value})
    assert caught.value.message.startswith(message)
    assert caught.value.param == name


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("port", 70000, "port must be between 0 and 65535, not 70000"),
        ("drain_seconds", float("nan"), "drain_seconds must be between 0 and 86400, not nan"),
        ("api_keys", "secret", "api_keys must be a sequence of texts"),
        ("api_keys", ["a", ""], "api_keys must hold non-empty texts only"),
    ],
)
def test_the_doors_values_are_refused_alike(name: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        server_config({name: value})
    assert caught.value.message.startswith(message)


def test_none_is_a_value_where_the_default_is_worked_out_at_start() -> None:
    assert engine_config("m", {"threads": None}).executor.threads is None


@pytest.mark.parametrize("path", ["", None, 3])
def test_a_model_has_to_be_named(path: Any) -> None:
    with pytest.raises(ConfigError, match="model must be a path or a Hugging Face name"):
        engine_config(path, {})


def test_no_number_is_without_a_range() -> None:
    """A new number setting must say which values make sense: the far ends are refused for each of them."""
    for setting in settings_of(*ENGINE, ServerConfig).values():
        if setting.kind in (int, float):
            for value in (setting.kind(-1), setting.kind(2**62)):
                with pytest.raises(ConfigError):
                    setting.checked(value)


def test_names_are_unique_over_all_dataclasses() -> None:
    """Flat names need it: a field of one class must not hide that of another."""
    count = sum(len(settings_of(owner)) for owner in (*ENGINE, ServerConfig))
    assert len(settings_of(*ENGINE, ServerConfig)) == count


def test_defaults_pass_their_own_checks() -> None:
    for setting in settings_of(*ENGINE, ServerConfig).values():
        if setting.name != "path":
            assert setting.checked(setting.default) == setting.default

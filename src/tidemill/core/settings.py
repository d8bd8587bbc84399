"""Settings by their bare names: one flat table made from the configuration's dataclasses.

The command line and the Python API both take settings flat (``max_running=8``, ``--max-running 8``). Here they are
looked up, checked and put back into the dataclasses, so that a name, a default, a range and a description exist once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from tidemill.core.config import (
    BLOCK_SIZES,
    EngineConfig,
    ExecutorConfig,
    ModelConfig,
    SchedulerConfig,
    ServerConfig,
    field_docs,
)
from tidemill.core.errors import ConfigError

__all__ = ["PATHS", "Setting", "engine_config", "server_config", "settings_of", "values_of"]

PATHS = frozenset({"cache_dir", "chat_template", "crash_dir", "keys_file", "tls_certificate", "tls_key"})
"""Settings that are a path and nothing else."""
_NESTED = {"model": ModelConfig, "executor": ExecutorConfig, "scheduler": SchedulerConfig}

_RANGES: Mapping[str, tuple[float, float]] = {
    "max_model_len": (1, 2**31 - 1),
    "threads": (1, 1024),
    "quantize_check": (0, 1024),
    "kv_check": (0, 1024),
    "kv_check_warn": (0, 1000),
    "kv_check_limit": (0, 1000),
    "max_loras": (0, 256),
    "max_lora_rank": (1, 4096),
    "max_running": (1, 4096),
    "max_step_tokens": (1, 2**20),
    "max_waiting": (1, 2**20),
    "itl_target": (0, 60),
    "prefill_share": (0, 1),
    "order_patience": (0, 86400),
    "fair_credit": (0, 2**30),
    "batch_size": (1, 4096),
    "batch_wait": (0, 10),
    "speculate_tokens": (1, 64),
    "speculate_suffix_tokens": (64, 2**24),
    "prefix_cache_ttl": (0, 10**9),
    "kv_memory": (1, 2**50),
    "packed_cache_size": (1, 2**50),
    "port": (0, 65535),
    "max_body_bytes": (1024, 2**31 - 1),
    "crash_reports": (0, 10_000),
    "max_wait_seconds": (0, 86400),
    "drain_seconds": (0, 86400),
    "slow_reader_seconds": (1, 86400),
    "stuck_seconds": (1, 86400),
    "kv_events_buffer": (1, 2**20),
    "profile_every": (0, 2**31 - 1),
}
"""Both ends are allowed values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One field of a configuration dataclass."""

    name: str
    owner: type[Any]
    kind: type[Any]
    """bool, int, float, str; tuple for several values, Mapping for a table of them."""
    element: type[Any]
    """The kind of one value: that of a tuple's elements, else the kind itself."""
    optional: bool
    """None is a value: the default is worked out at start."""
    choices: tuple[Any, ...]
    """The values there are; empty: any in range."""
    default: Any
    doc: str

    @property
    def range_text(self) -> str:
        """The range for people, ``1 to 4096``; empty where every value will do."""
        if self.name not in _RANGES:
            return ""
        low, high = _RANGES[self.name]
        return f"{low:.0f} to {high:.0f}"

    def checked(self, value: Any) -> Any:
        """Return the value if the setting can have it, else raise ConfigError naming setting, value and fix."""
        if value is None and self.optional:
            return None
        if self.kind is tuple:
            return self._texts(value)
        if not self._fits(value):
            self._refuse(value, f"must be {_KIND_WORDS[self.kind]}")
        if self.choices and value not in self.choices:
            self._refuse(value, f"must be one of {', '.join(map(str, self.choices))}")
        low, high = _RANGES.get(self.name, (-math.inf, math.inf))
        if self.kind in (int, float) and not low <= value <= high:
            self._refuse(value, f"must be between {low:.0f} and {high:.0f}")
        return float(value) if self.kind is float else value

    def _fits(self, value: Any) -> bool:
        if self.kind is float:
            return isinstance(value, int | float) and not isinstance(value, bool)
        return type(value) is self.kind

    def _texts(self, value: Any) -> tuple[str, ...]:
        if isinstance(value, str) or not isinstance(value, Iterable):
            self._refuse(value, "must be a sequence of texts")
        texts = tuple(value)
        if not all(isinstance(text, str) and text for text in texts):
            self._refuse(value, "must hold non-empty texts only")
        return texts

    def _refuse(self, value: Any, rule: str) -> None:
        raise ConfigError(f"{self.name} {rule}, not {value!r}", param=self.name)


_KIND_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def settings_of(*owners: Any) -> dict[str, Setting]:
    """The settings of these dataclasses by name, in the order of their fields; nested dataclasses are left out."""
    found: dict[str, Setting] = {}
    for owner in owners:
        hints, docs = get_type_hints(owner), field_docs(owner)
        for item in fields(owner):
            if owner is EngineConfig and item.name in _NESTED:
                continue
            kind, element, optional, choices = _kind(hints[item.name])
            if item.name == "block_size":
                choices = BLOCK_SIZES
            default = item.default if item.default is not MISSING else None
            found[item.name] = Setting(
                name=item.name,
                owner=owner,
                kind=kind,
                element=element,
                optional=optional,
                choices=choices,
                default=default,
                doc=docs[item.name],
            )
    return found


def engine_config(path: str, values: Mapping[str, Any]) -> EngineConfig:
    """The configuration of an engine from a model and flat settings; what is not named keeps its default.

    Raises ConfigError for a name that does not exist (with the nearest one that does) and for values out of range.
    """
    known = settings_of(ModelConfig, ExecutorConfig, SchedulerConfig, EngineConfig)
    if not isinstance(path, str) or not path:
        raise ConfigError(f"model must be a path or a Hugging Face name, not {path!r}", param="model")
    checked = _checked(values, {name: setting for name, setting in known.items() if name != "path"})

    def part(owner: type[Any]) -> dict[str, Any]:
        return {name: value for name, value in checked.items() if known[name].owner is owner}

    return EngineConfig(
        model=ModelConfig(path=path, **part(ModelConfig)),
        executor=ExecutorConfig(**part(ExecutorConfig)),
        scheduler=SchedulerConfig(**part(SchedulerConfig)),
        **part(EngineConfig),
    )


def server_config(values: Mapping[str, Any]) -> ServerConfig:
    """The configuration of the HTTP door from flat settings; raises ConfigError as engine_config does."""
    return ServerConfig(**_checked(values, settings_of(ServerConfig)))


def values_of(config: EngineConfig | ServerConfig) -> dict[str, Any]:
    """Every setting of a configuration by its bare name, those of nested ones included."""
    found: dict[str, Any] = {}
    for item in fields(config):
        value = getattr(config, item.name)
        if isinstance(config, EngineConfig) and item.name in _NESTED:
            found.update({nested.name: getattr(value, nested.name) for nested in fields(value)})
        else:
            found[item.name] = value
    return found


def _checked(values: Mapping[str, Any], known: Mapping[str, Setting]) -> dict[str, Any]:
    for name in values:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}"
            raise ConfigError(f"there is no setting {name}; {hint}", param=name)
    return {name: known[name].checked(value) for name, value in values.items()}


def _kind(hint: Any) -> tuple[type[Any], type[Any], bool, tuple[Any, ...]]:
    """(kind, element, may be None, choices) of a field's type."""
    optional = False
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (arm for arm in get_args(hint) if arm is not NoneType)
        optional = True
    if get_origin(hint) is Literal:
        return str, str, optional, get_args(hint)
    if get_origin(hint) is tuple:
        return tuple, get_args(hint)[0], optional, ()
    kind = get_origin(hint) or hint
    return kind, kind, optional, ()

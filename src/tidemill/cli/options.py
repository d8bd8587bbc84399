"""Command-line options made from the configuration's dataclasses: one name, one default, one text for each setting.

``with_settings(ModelConfig, ...)`` replaces a command's ``**settings`` by one option per field. Only what the caller
typed reaches the command, so defaults stay where they are defined.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

import typer

from tidemill.core.errors import ConfigError
from tidemill.core.settings import Setting, settings_of

__all__ = ["SIZES", "DebugOption", "JsonOption", "parse_size", "typed_settings", "with_settings"]

SIZES = frozenset({"kv_memory", "max_body_bytes", "packed_cache_size"})
"""Settings in bytes, which take 512MiB and the like."""
_SINGULAR = {
    "api_keys": "--api-key",
    "allowed_hosts": "--allowed-host",
    "allowed_origins": "--allowed-origin",
    "stop_token_ids": "--stop-token-id",
    "allowed_token_ids": "--allowed-token-id",
    "bad_words": "--bad-word",
}
"""Options that are given once per value are named for one value."""
_VARIABLES = {"api_keys": "TIDEMILL_API_KEY", "keys_file": "TIDEMILL_KEYS_FILE"}
"""Environment variables: a key on the command line can be read by everybody on the machine; its file goes with it."""
_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
_UNITS |= {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def parse_size(text: str | int) -> int:
    """Bytes of ``123``, ``512MiB``, ``8GiB``, ``1.5g``; decimal units without the i."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", str(text).lower())
    if match is None or match[2] not in _UNITS:
        raise ConfigError(f"{text!r} is not a size; write bytes, or a number with a unit as in 512MiB or 8GiB")
    return int(float(match[1]) * _UNITS[match[2]])


def with_settings(
    *owners: type[Any], names: Mapping[str, str] | None = None, without: Iterable[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command one option per field of these dataclasses, in place of its ``**settings``.

    ``names`` adds further spellings of an option (``{"max_model_len": "--context"}``).
    """
    skipped = {"path", *without}
    settings = {name: item for name, item in settings_of(*owners).items() if name not in skipped}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        own = [item for item in signature.parameters.values() if item.kind is not inspect.Parameter.VAR_KEYWORD]
        made = [_parameter(setting, (names or {}).get(setting.name)) for setting in settings.values()]

        @functools.wraps(command)
        def run(**values: Any) -> None:
            typed = typed_settings(settings, values)
            command(**{name: value for name, value in values.items() if name not in settings}, **typed)

        run.__signature__ = signature.replace(parameters=[*own, *made])  # type: ignore[attr-defined]
        run.__annotations__ = {}
        return run

    return decorate


def typed_settings(settings: Mapping[str, Setting], values: Mapping[str, Any]) -> dict[str, Any]:
    """What the caller typed: options left out are None or empty."""
    typed: dict[str, Any] = {}
    for name, setting in settings.items():
        value = values.get(name)
        if value is None or (setting.kind in (tuple, Mapping) and not value):
            continue
        typed[name] = _value(setting, value)
    return typed


def _value(setting: Setting, value: Any) -> Any:
    if setting.kind is Mapping:
        return dict(_entry(setting.name, text) for text in value)
    if setting.kind is tuple:
        return tuple(value)
    return value


def _entry(name: str, text: str) -> tuple[int, float]:
    """One ``ID=VALUE`` of a table."""
    key, _, value = text.partition("=")
    try:
        return int(key), float(value)
    except ValueError:
        raise ConfigError(f"{name} takes ID=VALUE as in 42=-5, not {text!r}", param=name) from None


def _parameter(setting: Setting, also: str | None) -> inspect.Parameter:
    """A keyword-only parameter that typer turns into an option; it is None unless the caller types it."""
    kind, extra = _typer_kind(setting)
    flags = _flags(setting)
    if also:
        flags.insert(0, also)
    default = _default_text(setting)
    text = f"{setting.doc} [default: {default}]" if default else setting.doc
    option = typer.Option(*flags, help=text, show_default=False, envvar=_VARIABLES.get(setting.name), **extra)
    return inspect.Parameter(
        setting.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option]
    )


def _typer_kind(setting: Setting) -> tuple[Any, dict[str, Any]]:
    if setting.name in SIZES:
        return int | None, {"parser": parse_size, "metavar": "SIZE"}
    if setting.kind is tuple:
        return list[setting.element] | None, {}  # type: ignore[name-defined]
    if setting.kind is Mapping:
        return list[str] | None, {"metavar": "ID=VALUE"}
    if setting.choices:
        return setting.kind | None, {"metavar": "|".join(map(str, setting.choices))}
    return setting.kind | None, {}


def _flags(setting: Setting) -> list[str]:
    flag = _SINGULAR.get(setting.name, "--" + setting.name.replace("_", "-"))
    return [f"{flag}/--no-{flag[2:]}"] if setting.kind is bool else [flag]


def _default_text(setting: Setting) -> str | None:
    """The default as the help shows it; None where the text says how it is worked out."""
    if setting.kind is bool:
        return "on" if setting.default else "off"
    if setting.default is None or setting.default == ():
        return None
    if setting.name in SIZES:
        return f"{setting.default / 2**20:g}MiB"
    return str(setting.default)

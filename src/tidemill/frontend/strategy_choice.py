"""``strategies`` of a request: which of the engine's strategies it goes without."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import tidemill.executors.strategies
import tidemill.scheduling.strategies  # noqa: F401 (both fill the registry)
from tidemill.core.errors import InvalidRequest
from tidemill.core.field_path import field_path
from tidemill.core.strategy import STRATEGIES
from tidemill.core.tokens import EngineInfo

__all__ = ["strategies_of_requests", "strategies_without", "strategy_choice"]

_VALUES = ("on", "off")


def strategies_of_requests() -> tuple[str, ...]:
    """The names that a request can choose."""
    return tuple(one.name for one in STRATEGIES.values() if one.per_request)


def strategy_choice(value: Any) -> Mapping[str, str]:
    """``{name: on or off}``. Raises InvalidRequest naming what is not known, with the nearest that is."""
    if not isinstance(value, Mapping):
        raise InvalidRequest("strategies must be an object of names and 'on' or 'off'", param="strategies")
    for name, chosen in value.items():
        field = field_path(("strategies", name))
        _check_name(name, field)
        if chosen not in _VALUES:
            hint = _nearest(str(chosen), _VALUES)
            raise InvalidRequest(f"{field} must be 'on' or 'off', not {str(chosen)[:40]!r}{hint}", param=field)
    return dict(value)


def strategies_without(choice: Mapping[str, str], info: EngineInfo) -> tuple[str, ...]:
    """The names that a choice goes without, in order. Raises InvalidRequest for what this engine cannot turn on."""
    for name, value in choice.items():
        if value == "on" and name not in info.strategies:
            field = f"strategies.{name}"
            raise InvalidRequest(f"{field} is off here, and no request can turn it on", param=field)
    return tuple(sorted(name for name, value in choice.items() if value == "off"))


def _check_name(name: str, field: str) -> None:
    known = strategies_of_requests()
    if name in known:
        return
    if name in STRATEGIES:
        setting = STRATEGIES[name].setting.partition(".")[2]
        raise InvalidRequest(
            f"{field} is chosen for all requests, when the server starts (setting {setting}); "
            f"a request chooses {_listed(known)}",
            param=field,
        )
    raise InvalidRequest(
        f"there is no strategy {name[:64]!r}{_nearest(name, known)}; a request chooses {_listed(known)}",
        param=field,
    )


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _nearest(said: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(said[:64].lower().replace("_", "-"), known, n=1, cutoff=0.4)
    return f"; did you mean {near[0]!r}?" if near else ""

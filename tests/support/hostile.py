"""What a damaged or hostile file may hold, and how to put it there: for tests that expect one line, whatever it is."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

__all__ = ["NUMBERS", "TEXTS", "examples", "mutated"]

NUMBERS = [
    0, -1, 1, 2, 3, 7, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64, 10**30, 10**400,
    0.0, -0.0, 0.5, 1e308, float("nan"), float("inf"), float("-inf"),
]  # fmt: skip
TEXTS = ["", "a", "a\nb\x1b[31m\x00", "x" * 100_000, "linear", "default", "\u202e", "../../etc/passwd"]
_OBJECTS: list[Any] = [
    None, True, False, [], [[]], [None], [-1], ["a"], [1] * 50, {}, {"a": 1}, {"type": "x"}, {"content": 3},
    [0, 1, 2], ["sliding_attention"], {"rope_type": "yarn", "factor": 0}, {"rope_type": "longrope"},
    {"rope_type": "llama3", "factor": float("nan")}, {"type": None}, "\ud800", {"content": "\ud800"},
]  # fmt: skip
VALUES = NUMBERS + TEXTS + _OBJECTS


def examples(usual: int) -> int:
    """How many examples a test tries: more under ``make fuzz``."""
    return usual * int(os.environ.get("TIDEMILL_FUZZ_FACTOR", "1"))


def mutated(value: Any) -> st.SearchStrategy[Any]:
    """The JSON value with one to three of its parts changed, removed, doubled or joined by another."""
    return st.lists(_changes(value), min_size=1, max_size=3).map(lambda changes: _changed(value, changes))


def _changes(value: Any) -> st.SearchStrategy[tuple[tuple[Any, ...], str, Any]]:
    places = [place for place in _places(value, ()) if place]
    shallow = [place for place in places if len(place) <= 2]
    return st.tuples(
        st.one_of(st.sampled_from(shallow), st.sampled_from(places)),
        st.sampled_from(["set", "set", "set", "remove", "double", "join"]),
        st.sampled_from(VALUES),
    )


def _places(value: Any, place: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    yield place
    keys = value if isinstance(value, dict) else range(min(len(value), 40)) if isinstance(value, list) else ()
    for key in keys:
        yield from _places(value[key], (*place, key))


def _changed(value: Any, changes: list[tuple[tuple[Any, ...], str, Any]]) -> Any:
    value = copy.deepcopy(value)
    for place, kind, new in changes:
        try:
            _change(value, place, kind, copy.deepcopy(new))
        except (KeyError, IndexError, TypeError):  # an earlier change has taken the place away
            continue
    return value


def _change(value: Any, place: tuple[Any, ...], kind: str, new: Any) -> None:
    for key in place[:-1]:
        value = value[key]
    key = place[-1]
    match kind:
        case "remove":
            del value[key]
        case "double" if isinstance(value, list):
            value.insert(key, copy.deepcopy(value[key]))
        case "join" if isinstance(value, dict):
            value["type"] = new
        case _:
            value[key] = new

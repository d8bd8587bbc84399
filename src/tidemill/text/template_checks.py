"""What the operators, methods, filters and tests of a chat template may do, checked before they do it.

Each check bounds what one operation reads and makes; the budget bounds all of them together. What is not on a list here
is not available: Python's types have too many methods that make much out of little.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from itertools import islice
from typing import Any

from jinja2.exceptions import SecurityError

from tidemill.text.template_budget import (
    ITEM,
    MAX_ITEMS,
    another_round,
    charge,
    charge_items,
    charge_whole,
    read,
    read_whole,
)

__all__ = [
    "NO_FILTERS",
    "OPERATORS",
    "check_braces",
    "check_call",
    "check_result",
    "checked_date_format",
    "guarded",
    "guarded_test",
    "to_json",
]

MAX_WIDTH = 1_000
MAX_INTEGER_BITS = 4_096
MAX_FORMAT = 8_192
"""Characters of a text that formats others: the patterns below take its square."""
_PIECE = 48
"""What a piece of a text that is split weighs besides its characters."""
_MAX_SPLIT = 4 * MAX_ITEMS
"""Characters of a text that may be split."""

# Markup helpers and the like, with costly expressions, and chance: no chat template needs them.
NO_FILTERS = frozenset({"pprint", "random", "striptags", "urlize", "wordcount", "wordwrap", "xmlattr"})
# They hand on the items of what they get, or look at its length: nothing in it is copied.
_STRUCTURAL = frozenset(
    {"attr", "batch", "count", "d", "default", "first", "items", "last", "length", "list", "map", "reject",
     "rejectattr", "reverse", "select", "selectattr", "slice"}
)  # fmt: skip
_WIDTH_FILTERS = frozenset({"batch", "center", "indent", "round", "slice", "tojson", "truncate"})
_SLOW_FILTERS = {"title": 64, "urlencode": 16}
"""Filters that take as long for a character as others for so many."""
# A width of four digits or more, or one taken from the arguments, in %-formats and in format strings.
_WIDE_PERCENT = re.compile(r"%[^%a-zA-Z]*(?:\d{4}|\*)|%\([^)]*\)[^%a-zA-Z]*\d{4}")
_WIDE_BRACES = re.compile(r"\{[^{}]*(?:\d{4}|\{)")

_STRIPPING = frozenset({"lstrip", "rstrip", "strip"})
_FROM_THE_RIGHT = frozenset({"rfind", "rindex", "rpartition", "rsplit"})
_SPLITTING = frozenset({"rsplit", "split", "splitlines"})
_PADDING = frozenset({"center", "expandtabs", "ljust", "rjust", "zfill"})
_METHODS: dict[type, frozenset[str]] = {
    str: _STRIPPING | _FROM_THE_RIGHT | _SPLITTING | _PADDING
    | {"capitalize", "casefold", "count", "endswith", "find", "format", "format_map", "index", "isalnum", "isalpha",
       "isascii", "isdecimal", "isdigit", "isidentifier", "islower", "isnumeric", "isprintable", "isspace", "istitle",
       "isupper", "join", "lower", "partition", "removeprefix", "removesuffix", "replace", "startswith", "swapcase",
       "title", "upper"},
    int: frozenset({"bit_length"}),
    float: frozenset({"is_integer"}),
    dict: frozenset({"copy", "get", "items", "keys", "values"}),
    list: frozenset({"copy", "count", "index"}),
    tuple: frozenset({"count", "index"}),
}  # fmt: skip
_BUILTIN = type(len)


def check_call(called: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Before a function or method is called."""
    owner = getattr(called, "__self__", None)
    if isinstance(owner, str):
        _check_method(str, called.__name__)
        _check_text_method(called.__name__, owner, args, kwargs)
    elif isinstance(called, _BUILTIN):
        for kind in (int, float, dict, list, tuple):
            if isinstance(owner, kind):
                _check_method(kind, called.__name__)
                read_whole((owner, args))
                return
        raise SecurityError(f"{called.__name__} is not available")


def check_result(called: Any, result: Any) -> None:
    """After it: charge for what a method has made."""
    if isinstance(called, _BUILTIN):
        _charge_result(result, getattr(called, "__self__", None))


def _check_method(kind: type, name: str) -> None:
    if name not in _METHODS[kind]:
        raise SecurityError(f"{name} is not available")


def _check_text_method(name: str, owner: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    read_whole((owner, args))
    if name in _PADDING:
        _check_widths(args, kwargs)
        charge(len(owner) + owner.count("\t") * MAX_WIDTH if name == "expandtabs" else len(owner))
    elif name == "replace" and len(args) >= 2:
        _check_replaced(owner, str(args[0]), str(args[1]))
    elif name == "join" and args:
        charge(sum(len(item) for item in args[0] if isinstance(item, str)) + len(owner) * len(args[0]))
    elif name in _STRIPPING or name in _FROM_THE_RIGHT:
        read(len(owner) * max(len(str(arg)) for arg in (*args, *kwargs.values(), "")))
    if name in _SPLITTING and len(owner) > _MAX_SPLIT:
        raise SecurityError(f"it splits a text of more than {_MAX_SPLIT} characters")


def _check_replaced(text: str, old: str, new: str) -> None:
    count = text.count(old) if old else len(text) + 1
    charge(len(text) + count * len(new))


def _charge_result(result: Any, source: Any) -> None:
    if result is source:
        return
    if isinstance(result, str):
        charge(len(result))
    elif isinstance(result, list | tuple | dict):
        charge_items(len(result))
        if isinstance(source, str):
            charge(len(source) + (_PIECE - ITEM) * len(result))


# -- filters and tests ------------------------------------------------------------------------------------------------


def guarded(name: str, made: Callable[..., Any]) -> Callable[..., Any]:
    """A filter with its checks."""

    @wraps(made)  # carries over the marks by which Jinja passes context or environment
    def checked(*args: Any, **kwargs: Any) -> Any:
        another_round()
        own = 1 if hasattr(made, "jinja_pass_arg") else 0
        given = args[own:]
        if given and name not in _STRUCTURAL:
            given = (_listed(given[0]), *given[1:])
            _check_filter(name, given, kwargs)
        if name in _WIDTH_FILTERS:
            _check_widths(given[1:], kwargs)
        result = made(*args[:own], *given, **kwargs)
        _charge_result(result, given[0] if given else None)
        return result

    return checked


def guarded_test(made: Callable[..., Any]) -> Callable[..., Any]:
    """A test (``is defined``, ``is in``, ...) with its checks."""

    @wraps(made)
    def checked(*args: Any, **kwargs: Any) -> Any:
        another_round()
        read_whole(args)
        return made(*args, **kwargs)

    return checked


def _listed(value: Any) -> Any:
    """What would come only as it is asked for, as a list of bounded length; anything else as it is."""
    if not hasattr(value, "__next__"):
        return value
    items = list(islice(value, MAX_ITEMS + 1))
    charge_items(len(items))
    return items


def _check_filter(name: str, given: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Filters that look at all of what they get, or make text of it."""
    text = given[0]
    if isinstance(text, str):
        read(len(text) * _SLOW_FILTERS.get(name, 1))
    else:
        charge_whole(text)
    if name == "format":
        _check_remainder(text, (*given[1:], *kwargs.values()))
    elif name == "replace":
        _check_replaced(str(text), *map(str, (*given[1:3], "", "")[:2]))
    elif name == "trim":
        read(len(str(text)) * len(str(kwargs.get("chars", (*given, "")[1]))))
    elif name == "indent":
        width = kwargs.get("width", (*given, 4)[1])
        lines = str(text).count("\n") + 1
        charge(lines * (len(width) if isinstance(width, str) else MAX_WIDTH if width > 16 else 16))
    elif name == "join":
        between = str(kwargs.get("d", (*given, "")[1]))
        charge(len(between) * (len(text) if hasattr(text, "__len__") else 1))
    elif name == "sum" and not isinstance(kwargs.get("start", (*given, 0, 0, 0)[2]), int | float):
        raise SecurityError("sum is for numbers")


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as Python writes it; Jinja's own filter would escape ``<``, ``>``, ``&`` and ``'`` for HTML."""
    if separators is not None and sum(map(len, separators)) > MAX_WIDTH:
        raise SecurityError(f"it asks for a width over {MAX_WIDTH}")
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    if indent is None:
        return encoder.encode(value)
    pieces = []
    for piece in encoder.iterencode(value):  # indentation grows with the depth
        charge(len(piece))
        pieces.append(piece)
    return "".join(pieces)


# -- widths and formats -----------------------------------------------------------------------------------------------


def _check_widths(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    for value in (*args, *kwargs.values()):
        wide = (
            abs(value) > MAX_WIDTH
            if isinstance(value, int | float)
            else isinstance(value, str) and len(value) > MAX_WIDTH
        )
        if wide:
            raise SecurityError(f"it asks for a width over {MAX_WIDTH}")


def _checked_format(form: Any, wide: re.Pattern[str]) -> str:
    text = str(form)
    if len(text) > MAX_FORMAT:
        raise SecurityError(f"it formats with a text of more than {MAX_FORMAT} characters")
    if wide.search(text):
        raise SecurityError(f"it asks for a width over {MAX_WIDTH}")
    return text


def checked_date_format(form: Any) -> str:
    """The format of a date, without wide fields."""
    return _checked_format(form, _WIDE_PERCENT)


def check_braces(form: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Before ``form.format(*args, **kwargs)``."""
    _check_filled(_checked_format(form, _WIDE_BRACES), "{", (args, kwargs))


def _check_filled(form: str, sign: str, values: Any) -> None:
    """Each place of a format may print any of the values."""
    for _ in range(form.count(sign)):
        charge_whole(values)


# -- operators --------------------------------------------------------------------------------------------------------


def _check_sum(left: Any, right: Any) -> None:
    if isinstance(left, str) and isinstance(right, str):
        charge(len(left) + len(right))
    elif isinstance(left, list | tuple) and isinstance(right, list | tuple):
        charge_items(len(left) + len(right))


def _check_product(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() + right.bit_length())
        return
    repeated, times = (right, left) if isinstance(left, int) else (left, right)
    if not isinstance(times, int):
        return
    if isinstance(repeated, str):
        charge(len(repeated) * max(times, 0))
    elif isinstance(repeated, list | tuple):
        charge_items(len(repeated) * max(times, 0))


def _check_power(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() * max(right, 0))


def _check_bits(bits: int) -> None:
    if bits > MAX_INTEGER_BITS:
        raise SecurityError("it computes with too large numbers")


def _check_remainder(left: Any, right: Any) -> None:
    if isinstance(left, str):
        _check_filled(_checked_format(left, _WIDE_PERCENT), "%", right)


OPERATORS: dict[str, Callable[[Any, Any], None]] = {
    "+": _check_sum,
    "*": _check_product,
    "**": _check_power,
    "%": _check_remainder,
}
"""By operator: what is checked before it runs."""

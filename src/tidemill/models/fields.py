"""Typed reading of a model's hyperparameters: every refusal names the file and the field."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from tidemill.core.errors import ModelLoadError

__all__ = ["Fields"]

_MAX_FLOAT = sys.float_info.max


class Fields:
    """Hyperparameters under their Hugging Face names, read with a type and a range.

    A field that is null counts as absent, as in transformers.
    """

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = values
        self.where = where

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def integer(self, name: str, default: int | None = None, *, low: int = 1, high: int = 2**31 - 1) -> int:
        """A whole number in [low, high]."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.error(name, f"must be a whole number between {low} and {high}, not {value!r}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number above zero."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _MAX_FLOAT:
            raise self.error(name, f"must be a finite number above 0, not {value!r}")
        return float(value)

    def optional_number(self, name: str, default: float | None = None) -> float | None:
        """A finite number above zero, or None where the field is null; ``default`` where it is absent."""
        return None if self.values.get(name, default) is None else self.number(name, default)

    def flag(self, name: str, default: bool) -> bool:
        """true or false."""
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self.error(name, f"must be true or false, not {value!r}")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """A string."""
        value = self._get(name, default)
        if not isinstance(value, str):
            raise self.error(name, f"must be text, not {value!r}")
        return value

    def numbers(self, name: str) -> tuple[float, ...]:
        """A list of finite numbers above zero; empty if absent."""
        value = self.values.get(name)
        if value is None:
            return ()
        if not isinstance(value, list | tuple):
            raise self.error(name, f"must be a list of numbers, not {value!r}")
        return tuple(Fields({name: item}, self.where).number(name) for item in value)

    def section(self, name: str) -> Fields:
        """A nested object; empty if absent."""
        value = self.values.get(name)
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            raise self.error(name, f"must be an object, not {value!r}")
        return Fields(value, f"{self.where}: {name}")

    def error(self, name: str, problem: str) -> ModelLoadError:
        """The refusal to raise for a field."""
        return ModelLoadError(f"{self.where}: {name} {problem}")

    def _get(self, name: str, default: Any) -> Any:
        value = self.values.get(name)
        if value is None:
            value = default
        if value is None:
            raise self.error(name, "is missing")
        return value

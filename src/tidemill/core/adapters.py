"""LoRA adapters by name: what callers ask for, and where it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tidemill.core.errors import ConfigError

__all__ = ["AdapterSource", "adapter_sources", "name_problem"]

_MAX_NAME: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSource:
    """An adapter that requests may name as their model."""

    name: str
    path: str
    """A PEFT folder or a GGUF file."""


def adapter_sources(texts: Iterable[str]) -> tuple[AdapterSource, ...]:
    """The adapters of ``NAME=PATH`` texts. Raises ConfigError for another form, and for a name that is there twice."""
    sources: dict[str, AdapterSource] = {}
    for text in texts:
        name, _, path = text.partition("=")
        if not path:
            raise ConfigError(f"lora takes NAME=PATH as in sql=adapters/sql, not {text!r}", param="lora")
        if (problem := name_problem(name)) is not None:
            raise ConfigError(f"lora: {problem}", param="lora")
        if name in sources:
            raise ConfigError(f"lora names {name} twice", param="lora")
        sources[name] = AdapterSource(name=name, path=path)
    return tuple(sources.values())


def name_problem(name: str) -> str | None:
    """Why an adapter cannot have this name; None if it can."""
    if not name or len(name) > _MAX_NAME or not name.isprintable() or name != name.strip():
        return f"an adapter's name has 1 to {_MAX_NAME} printable characters, not {name[:60]!r}"
    return None

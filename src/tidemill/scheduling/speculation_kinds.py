"""The kinds of guesses that the setting ``speculate`` names."""

from __future__ import annotations

from typing import Final

from tidemill.core.errors import ConfigError

__all__ = ["DRAFT", "KINDS", "draft_path", "speculation_kinds", "strategy_name"]

DRAFT: Final = "draft"
KINDS: Final = ("ngram", "suffix", DRAFT)


def strategy_name(kind: str) -> str:
    """What the strategy of a kind is called."""
    return f"{kind}-speculation"


def speculation_kinds(setting: str) -> tuple[str, ...]:
    """The kinds, in their order; none for ``off``. Raises ConfigError for one that there is not, or is named twice."""
    kinds = tuple(kind for kind, _ in _parts(setting))
    for kind, path in _parts(setting):
        if kind not in KINDS:
            raise ConfigError(
                f"speculate: there is no {kind!r}; it is off, or some of ngram, suffix and draft:PATH, with commas",
                param="speculate",
            )
        if (kind == DRAFT) is not bool(path):
            said = (
                "needs the path of a model, as draft:PATH" if kind == DRAFT else f"takes no path, as in {kind}:{path}"
            )
            raise ConfigError(f"speculate: {kind} {said}", param="speculate")
    if len(set(kinds)) < len(kinds):
        raise ConfigError(f"speculate names a kind twice: {setting}", param="speculate")
    return kinds


def draft_path(setting: str) -> str | None:
    """The draft model's path or name; None: there is none."""
    return dict(_parts(setting)).get(DRAFT)


def _parts(setting: str) -> list[tuple[str, str]]:
    if setting == "off":
        return []
    return [(kind, path) for kind, _, path in (part.partition(":") for part in setting.split(","))]

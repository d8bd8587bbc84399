"""The kinds of guesses that the setting ``speculate`` names."""

from __future__ import annotations

from typing import Final

from tidemill.core.errors import ConfigError

__all__ = ["KINDS", "speculation_kinds", "strategy_name"]

KINDS: Final = ("ngram",)


def strategy_name(kind: str) -> str:
    """What the strategy of a kind is called."""
    return f"{kind}-speculation"


def speculation_kinds(setting: str) -> tuple[str, ...]:
    """The kinds, in their order; none for ``off``. Raises ConfigError for one that there is not, or is named twice."""
    if setting == "off":
        return ()
    kinds = tuple(setting.split(","))
    for kind in kinds:
        if kind not in KINDS:
            raise ConfigError(
                f"speculate: there is no {kind!r}; it is off, or one or more of {', '.join(KINDS)}, joined by commas",
                param="speculate",
            )
    if len(set(kinds)) < len(kinds):
        raise ConfigError(f"speculate names a kind twice: {setting}", param="speculate")
    return kinds

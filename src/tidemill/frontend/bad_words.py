"""Texts that are not to be generated, as the token sequences that a model would write them with."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.frontend.text import Text

__all__ = ["banned_sequences"]

_BEFORE = "\n"
"""Any text that no tokenizer joins with what follows it."""


def banned_sequences(words: Sequence[str], text: Text) -> tuple[tuple[int, ...], ...]:
    """Token ids of each word as it stands within a word or after a mark, and behind a space.

    These are the tokenizer's own ways of cutting the word; a model that spells it in other pieces is not stopped.
    """
    forms = dict.fromkeys(form for word in words for form in (word, " " + word.lstrip(" ")))
    found = dict.fromkeys(_inside(form, text) for form in forms)
    return tuple(ids for ids in found if ids)


def _inside(form: str, text: Text) -> tuple[int, ...]:
    """The tokens of a text that stands behind other text."""
    ending = len(text.ending)
    before = text.encode(_BEFORE)
    before = before[: len(before) - ending]
    whole = text.encode(_BEFORE + form)
    whole = whole[: len(whole) - ending]
    shared = next((i for i, (a, b) in enumerate(zip(before, whole, strict=False)) if a != b), len(before))
    return tuple(whole[shared:])

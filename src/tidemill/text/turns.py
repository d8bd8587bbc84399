"""Fits a conversation to templates that take nothing but user and assistant in turn (Gemma, Mistral, Llama 2).

system    Be brief.            user       Be brief.\\n\\nHi\\n\\nAnyone there?
user      Hi              ->   assistant  Yes.
user      Anyone there?
assistant Yes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["merge_turns"]

_BETWEEN = "\n\n"


def merge_turns(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """New messages: system becomes user, then neighbours of one role become one message.

    Texts are joined with a blank line; an empty one adds nothing. Messages with more than a role and text (tool calls,
    results, names) pass as they are. ``messages``: normalised.
    """
    merged: list[dict[str, Any]] = []
    for given in messages:
        message = {**given, "role": "user"} if given["role"] == "system" else dict(given)
        last = merged[-1] if merged else None
        if last is not None and last["role"] == message["role"] and _is_plain(last) and _is_plain(message):
            merged[-1] = {**last, "content": _joined(last["content"], message["content"])}
        else:
            merged.append(message)
    return merged


def _is_plain(message: dict[str, Any]) -> bool:
    return message.keys() == {"role", "content"}


def _joined(first: str, second: str) -> str:
    return _BETWEEN.join(text for text in (first, second) if text)

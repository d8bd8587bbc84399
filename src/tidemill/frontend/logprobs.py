"""Log-probabilities in OpenAI's two forms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidemill.frontend.choice import PlacedToken
from tidemill.frontend.text import Text

__all__ = ["chat_logprobs", "completion_logprobs"]

_LOWEST = -9999.0
"""Stands for minus infinity, which JSON cannot say."""


def chat_logprobs(tokens: Sequence[PlacedToken], text: Text) -> dict[str, Any]:
    """``{"content": [{token, logprob, bytes, top_logprobs}], "refusal": null}``."""
    content = []
    for placed in tokens:
        entry = _chat_token(placed.logprob.token, placed.logprob.logprob, text)
        entry["top_logprobs"] = [_chat_token(token, value, text) for token, value in placed.logprob.top]
        content.append(entry)
    return {"content": content, "refusal": None}


def _chat_token(token: int, logprob: float, text: Text) -> dict[str, Any]:
    return {"token": text.token_text(token), "logprob": _finite(logprob), "bytes": list(text.token_bytes(token))}


def completion_logprobs(tokens: Sequence[PlacedToken], text: Text, *, offset: int = 0) -> dict[str, Any]:
    """``{"tokens", "token_logprobs", "top_logprobs", "text_offset"}``: four lists of one length.

    ``top_logprobs`` holds the most likely tokens and always the generated one. A token that is no whole character is
    written as ``bytes:\\xf0\\x9f``, so that different tokens stay different keys. ``offset``: characters
    before the text of these tokens.
    """
    return {
        "tokens": [_key(placed.logprob.token, text) for placed in tokens],
        "token_logprobs": [_finite(placed.logprob.logprob) for placed in tokens],
        "top_logprobs": [_top(placed, text) for placed in tokens],
        "text_offset": [offset + placed.start for placed in tokens],
    }


def _top(placed: PlacedToken, text: Text) -> dict[str, float]:
    top: dict[str, float] = {}
    for token, value in (*placed.logprob.top, (placed.logprob.token, placed.logprob.logprob)):
        top.setdefault(_key(token, text), _finite(value))
    return top


def _key(token: int, text: Text) -> str:
    data = text.token_bytes(token)
    try:
        data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
    return text.token_text(token)


def _finite(value: float) -> float:
    return max(value, _LOWEST)

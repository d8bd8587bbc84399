"""Thinking in Anthropic's Messages API: the field that asks for it, and the signature of what was thought.

A signature of ours is a digest: it finds thoughts that were damaged on their way back. Those of others are taken as
they are. Source: https://platform.claude.com/docs/en/build-with-claude/extended-thinking.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from tidemill.core.errors import InvalidRequest, UnsupportedParameter
from tidemill.core.reasoning import AS_IT_IS, ReasoningOptions
from tidemill.serve.values import object_at, only, shown, text_at

__all__ = ["sent_back", "signature", "thinking_options"]

_OURS: Final = "tidemill-1:"


def thinking_options(value: Any, *, max_tokens: Any) -> ReasoningOptions:
    """The field ``thinking``. Raises InvalidRequest or one of its kinds, naming it."""
    if value is None:
        return AS_IT_IS
    fields = object_at(value, "thinking")
    only(fields, ("type", "budget_tokens", "display"), "thinking")
    asked = ReasoningOptions(enabled_field="thinking", budget_field="thinking.budget_tokens")
    kind, budget = fields.get("type"), fields.get("budget_tokens")
    if kind not in ("enabled", "adaptive", "disabled"):
        raise InvalidRequest(
            f"thinking.type must be enabled, adaptive or disabled, not {shown(kind)}", param="thinking.type"
        )
    if fields.get("display") not in (None, "summarized"):
        raise UnsupportedParameter("thinking.display: thoughts are shown as they are", param="thinking.display")
    if kind != "enabled":
        if budget is not None:
            raise InvalidRequest(
                f"thinking.budget_tokens is for thinking that is enabled, not {kind}", param="thinking.budget_tokens"
            )
        return replace(asked, enabled=kind == "adaptive")
    if type(budget) is not int or budget < 1:
        raise InvalidRequest(
            f"thinking.budget_tokens must be a whole number above 0, not {shown(budget)}",
            param="thinking.budget_tokens",
        )
    if type(max_tokens) is int and budget >= max_tokens:
        raise InvalidRequest(
            f"thinking.budget_tokens is {budget}, and max_tokens, which counts the answer too, only {max_tokens}",
            param="thinking.budget_tokens",
        )
    return replace(asked, enabled=True, budget=budget)


def signature(thought: str) -> str:
    """Of a thought."""
    digest = hashlib.blake2b(thought.encode(), digest_size=24).digest()
    return _OURS + base64.urlsafe_b64encode(digest).decode()


def sent_back(block: Mapping[str, Any], at: str) -> str:
    """The text of a thinking block of an earlier answer; raises InvalidRequest where its signature is of another."""
    thought = text_at(block, "thinking", at)
    given = block.get("signature")
    if given is not None and text_at(block, "signature", at).startswith(_OURS) and given != signature(thought):
        field = f"{at}.signature"
        raise InvalidRequest(f"{field} is of another thought: send thinking blocks back unchanged", param=field)
    return thought

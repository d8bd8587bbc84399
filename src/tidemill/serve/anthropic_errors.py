"""Errors in the form of Anthropic's Messages API: https://platform.claude.com/docs/en/api/errors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from tidemill.core.errors import (
    DeadlineExceeded,
    Forbidden,
    NotFound,
    Overloaded,
    PayloadTooLarge,
    RateLimited,
    TidemillError,
    Unauthorized,
    Unavailable,
)

__all__ = ["KINDS", "anthropic_error"]

KINDS: Final[Mapping[type[TidemillError], str]] = {
    Unauthorized: "authentication_error",
    Forbidden: "permission_error",
    NotFound: "not_found_error",
    PayloadTooLarge: "request_too_large",
    RateLimited: "rate_limit_error",
    Overloaded: "overloaded_error",
    Unavailable: "overloaded_error",
    DeadlineExceeded: "timeout_error",
}
"""By class, subclasses included. All else is an invalid_request_error, or, where it is our fault, an api_error."""


def anthropic_error(error: TidemillError) -> dict[str, Any]:
    """``{"type": "error", "error": {"type", "message"}}``, the same before a stream and within it."""
    other = "invalid_request_error" if error.status < 500 else "api_error"
    kind = next((KINDS[one] for one in type(error).__mro__ if one in KINDS), other)
    return {"type": "error", "error": {"type": kind, "message": _in_its_words(error.message)}}


def _in_its_words(message: str) -> str:
    """Fields by the names that this API has for them, where a message begins with one."""
    message = re.sub(r"^stop(?=[ \[])", "stop_sequences", message)
    message = re.sub(r"^(tools\[\d+\])\.function\.parameters\b", r"\1.input_schema", message)
    return re.sub(r"^(tools\[\d+\])\.function\b", r"\1", message)

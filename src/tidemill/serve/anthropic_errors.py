"""Errors in the form of Anthropic's Messages API."""

from __future__ import annotations

from typing import Any, Final

from tidemill.core.errors import TidemillError

__all__ = ["anthropic_error"]

_KINDS: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def anthropic_error(error: TidemillError) -> dict[str, Any]:
    """``{"type": "error", "error": {"type", "message"}}``."""
    kind = _KINDS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}

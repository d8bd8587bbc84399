"""Errors as HTTP responses: one shape, whoever raised them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from starlette.responses import Response

from tidemill.core.errors import PayloadTooLarge, RequestTimeout, TidemillError, Unauthorized
from tidemill.core.events import Event
from tidemill.serve.anthropic_errors import anthropic_error

__all__ = ["ANTHROPIC_PATHS", "refusal"]

ANTHROPIC_PATHS: Final = "/v1/messages"
"""Routes that answer as Anthropic's API does begin with this."""
_RETRY_AFTER: Final = 1.0
"""Seconds, where nobody knows better; a shortage passes within steps, and a stopping server is gone by then."""
_LONGEST_RETRY: Final = 3600


def refusal(error: TidemillError, headers: Mapping[str, str] | None = None, *, path: str = "") -> Response:
    """The response for an error, with the headers that its status asks for, in the form of the API that the path
    belongs to."""
    body = anthropic_error(error) if path.startswith(ANTHROPIC_PATHS) else error.body()
    return Response(
        Event(payload=body).raw,
        status_code=error.status,
        media_type="application/json",
        headers={**_headers(error), **(headers or {})},
    )


def _headers(error: TidemillError) -> dict[str, str]:
    if error.retryable:
        seconds = _RETRY_AFTER if error.retry_after is None else error.retry_after
        return {"retry-after": str(min(_LONGEST_RETRY, max(1, math.ceil(seconds))))}
    if isinstance(error, Unauthorized):
        return {"www-authenticate": "Bearer"}
    if isinstance(error, PayloadTooLarge | RequestTimeout):
        return {"connection": "close"}  # the rest of the body is not read
    return {}

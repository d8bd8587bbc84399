"""Errors as HTTP responses: one shape, whoever raised them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from starlette.responses import Response

from tidemill.core.errors import PayloadTooLarge, RequestTimeout, TidemillError, Unauthorized
from tidemill.core.events import Event

__all__ = ["refusal"]

_RETRY_AFTER: Final = "1"
"""Seconds; a shortage here passes within steps, and a stopping server is gone by then."""


def refusal(error: TidemillError, headers: Mapping[str, str] | None = None) -> Response:
    """The response for an error, with the headers that its status asks for."""
    return Response(
        Event(payload=error.body()).raw,
        status_code=error.status,
        media_type="application/json",
        headers={**_headers(error), **(headers or {})},
    )


def _headers(error: TidemillError) -> dict[str, str]:
    if error.retryable:
        return {"retry-after": _RETRY_AFTER}
    if isinstance(error, Unauthorized):
        return {"www-authenticate": "Bearer"}
    if isinstance(error, PayloadTooLarge | RequestTimeout):
        return {"connection": "close"}  # the rest of the body is not read
    return {}

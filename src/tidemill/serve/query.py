"""What a request says behind the question mark."""

from __future__ import annotations

import math

from starlette.requests import Request

from tidemill.core.errors import InvalidRequest

__all__ = ["query_seconds", "query_switch"]


def query_switch(request: Request, name: str) -> bool:
    """A switch that is true or false, false where it is absent. Raises InvalidRequest, for other parameters too."""
    value = _only(request, name)
    if value not in (None, "true", "false"):
        raise InvalidRequest(f"{name} must be true or false, not {value[:60]!r}", param=name)
    return value == "true"


def query_seconds(request: Request, name: str) -> float | None:
    """A number of seconds from 0 up; None: absent. Raises InvalidRequest, for other parameters too."""
    value = _only(request, name)
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= 86400:
        raise InvalidRequest(f"{name} must be seconds between 0 and 86400, not {value[:60]!r}", param=name)
    return seconds


def _only(request: Request, name: str) -> str | None:
    for other in request.query_params:
        if other != name:
            raise InvalidRequest(f"there is no parameter {other[:64]!r}; there is {name}", param=other[:64])
    values = request.query_params.getlist(name)
    if len(values) > 1:
        raise InvalidRequest(f"{name} is there {len(values)} times: send it once", param=name)
    return values[0] if values else None

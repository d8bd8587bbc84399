"""Web pages of other origins, where the browser does not ask first whether they may."""

from __future__ import annotations

from collections.abc import Collection

from starlette.requests import Request

from tidemill.core.errors import Forbidden

__all__ = ["refuse_foreign_page"]


def refuse_foreign_page(request: Request, allowed: Collection[str]) -> None:
    """Raise Forbidden for a request that a page of another origin made a browser send.

    Routes that read JSON need no such check: browsers ask before they send it, and before they send a key. One without
    a body is sent unasked.
    """
    origin = request.headers.get("origin")
    if origin is None or "*" in allowed or origin in allowed:
        return
    if origin.partition("://")[2] != request.headers.get("host"):
        raise Forbidden(f"pages of {origin[:100]!r} may not do this: it is not in allowed_origins", param="Origin")

"""The headers that let web pages of other origins use the server."""

from __future__ import annotations

from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from tidemill.core.config import ServerConfig
from tidemill.serve.deadline import HEADER

__all__ = ["cors"]


def cors(config: ServerConfig) -> list[Middleware]:
    """What to put around the door; nothing where no origin is allowed. Browsers ask without a key, so it is outermost.

    Cookies are never asked for: a key goes in a header, which a page has to know.
    """
    if not config.allowed_origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=list(config.allowed_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],  # clients send several of their own
            expose_headers=["x-request-id", "retry-after", HEADER],
        )
    ]

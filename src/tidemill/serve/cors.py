"""The headers that let web pages of other origins use the server."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from tidemill.core.config import ServerConfig
from tidemill.serve.deadline import HEADER
from tidemill.serve.live_config import LiveConfig
from tidemill.serve.tracing import HEADER as TRACE_HEADER

__all__ = ["Cors"]


class Cors:
    """ASGI middleware around the door; nothing where no origin is allowed. Browsers ask without a key, so it is
    outermost.

    Cookies are never asked for: a key goes in a header, which a page has to know.
    """

    def __init__(self, app: ASGIApp, *, live: LiveConfig, exposed: Sequence[str] = ()) -> None:
        """``exposed``: headers of answers that pages may read, besides those of every server."""
        self._app = app
        self._exposed = exposed
        self._around = app
        live.follow(self._take)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._around(scope, receive, send)

    def _take(self, config: ServerConfig) -> None:
        if not config.allowed_origins:
            self._around = self._app
            return
        self._around = CORSMiddleware(
            self._app,
            allow_origins=list(config.allowed_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],  # clients send several of their own
            expose_headers=["x-request-id", "retry-after", HEADER, TRACE_HEADER, *self._exposed],
        )

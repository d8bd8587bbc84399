"""The server process: bind, start the engine, say how to try it, serve, and stop without cutting answers short.

first SIGTERM or SIGINT, or POST /drain
                          new requests get 503, /ready too; what runs has drain_seconds to finish, then it gets an
                          error event; then the process ends
second                    what runs ends at once
SIGHUP, or POST /admin/reload
                          with a file of settings: what can change does, see ``reload``
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, Literal

import uvicorn
from starlette.types import ASGIApp

from tidemill.core.config import ServerConfig
from tidemill.core.errors import ConfigError
from tidemill.core.protocols import AdapterHost, Backend, TokenEngine
from tidemill.serve.app import Lifetime, make_app
from tidemill.serve.drain import Drain
from tidemill.serve.listener import bind, check_config
from tidemill.serve.live_config import LiveConfig
from tidemill.serve.logs import set_log_level
from tidemill.serve.metrics import PrometheusMetrics
from tidemill.serve.protocol import BoundedHttp, room_for_connections
from tidemill.serve.reload import Reloader
from tidemill.serve.tracing import Tracing, open_tracing

__all__ = ["DrainingServer", "Example", "HttpServer", "ready_line", "run"]

Example = Literal["chat", "completion", "embedding"]

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_CUT_SECONDS: Final = 2.0
"""How long cut answers may take to send their last event."""
_CLOSE_SECONDS: Final = 5
"""How long connections may take to close at the end."""
_KEEP_ALIVE_SECONDS: Final = 65
"""Longer than most clients and proxies keep idle connections, so that it is they who close them."""


def run(
    config: ServerConfig,
    backend: Backend,
    *,
    engine: TokenEngine | None = None,
    adapters: AdapterHost | None = None,
    metrics: PrometheusMetrics | None = None,
    lifetime: Lifetime | None = None,
    example: Example = "chat",
    reloader: Reloader | None = None,
    say: Callable[[str], None] = lambda line: print(line, flush=True),
) -> int:
    """Serve until a signal ends it; returns the exit code 0.

    ``example``: the kind of request that the model takes, shown when the server is up. ``reloader``: reads the settings
    again at SIGHUP and POST /admin/reload. Raises ConfigError for
    settings that cannot be, a port in use among them, before anything is started.
    """
    check_config(config)
    live = LiveConfig(config) if reloader is None else reloader.live
    live.follow(set_log_level)
    tracing = open_tracing(config)
    listener = bind(config)
    server = HttpServer(
        config,
        backend,
        engine=engine,
        adapters=adapters,
        metrics=metrics,
        lifetime=lifetime,
        reloader=reloader,
        tracing=tracing,
    )
    shown = ready_line(config.host, listener.getsockname()[1], backend.models[0], config, example=example)
    server.on_started = lambda: say(shown)
    try:
        server.run(sockets=[listener])
    finally:
        listener.close()
        if tracing is not None:
            tracing.close()
    return 0


_QUESTION = "Why does the tide come twice a day?"
_WAY = {"temperature": 0, "max_tokens": 200, "stream": True}  # a small model can go on for as long as it may
_EXAMPLES: dict[Example, tuple[str, dict[str, object]]] = {
    "chat": ("chat/completions", {"messages": [{"role": "user", "content": _QUESTION}], **_WAY}),
    "completion": ("completions", {"prompt": "The tide comes", **_WAY}),
    "embedding": ("embeddings", {"input": _QUESTION}),
}
"""A path and the fields of a request, of each kind."""


def ready_line(host: str, port: int, model: str, config: ServerConfig, *, example: Example) -> str:
    """Where the server is, and a command that gets an answer from it."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    scheme = "http" if config.tls_certificate is None else "https"
    base = f"{scheme}://[{shown}]:{port}/v1" if ":" in shown else f"{scheme}://{shown}:{port}/v1"
    path, content = _EXAMPLES[example]
    request = {"model": model, **content}
    body = json.dumps(request, ensure_ascii=False).replace("'", "'\\''")
    key = ' -H "Authorization: Bearer $TIDEMILL_API_KEY"' if config.api_keys or config.keys_file else ""
    return (
        f"Ready: {model} at {base}\nTry:   curl -N {base}/{path} -H 'Content-Type: application/json'{key} -d '{body}'"
    )


class DrainingServer(uvicorn.Server):
    """uvicorn with our way of stopping. Which application is served says ``make``."""

    def __init__(
        self,
        config: ServerConfig,
        *,
        make: Callable[[DrainingServer], ASGIApp],
        lifetime: Lifetime | None = None,
        reload: Callable[[], object] | None = None,
        now: Callable[[], ServerConfig] | None = None,
    ) -> None:
        """``lifetime`` is started before the server listens. ``reload``: reads the settings again, or raises
        ConfigError; None: there is nothing to read. ``now``: the settings of now, where they may change."""
        self._reload = reload
        self._now = now or (lambda: config)
        self.drain = Drain()
        self.on_started: Callable[[], None] = lambda: None
        self._lifetime = _Once(lifetime)
        self._starting: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._signalled = False
        super().__init__(
            uvicorn.Config(
                make(self),
                loop="uvloop",
                http=BoundedHttp,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                ssl_certfile=config.tls_certificate,
                ssl_keyfile=config.tls_key,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=_CLOSE_SECONDS,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the engine, then listen, then say so. What the engine raises is raised here.

        A signal meanwhile ends the start.
        """
        self._starting = asyncio.create_task(self._lifetime.start())
        try:
            await self._starting
        except asyncio.CancelledError:
            if self._stopping is None:
                raise
            self.should_exit = True
            return
        await super().startup(sockets)
        self.on_started()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve, and close the engine in every case."""
        BoundedHttp.most_connections = room_for_connections()
        try:
            await super().serve(sockets)
        finally:
            await self._lifetime.close()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Ours instead of uvicorn's, which raises the signal again at the end and so spoils the exit code."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        handlers = dict.fromkeys(_SIGNALS, self.stop)
        if self._reload is not None:  # else a terminal that closes ends the server, as it does other programs
            handlers[signal.SIGHUP] = self.reload
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)

    def reload(self) -> None:
        """Read the settings again; the log says what came of it."""
        assert self._reload is not None, "there is nothing to read"
        with suppress(ConfigError):
            self._reload()

    def stop(self) -> None:
        """First call: drain, then end. Second call: end now. To be called on the loop."""
        if not self._signalled:
            self._signalled = True
            if self._stopping is None:  # else somebody has asked for it by POST /drain
                self.stop_within(None)
            if self._starting is not None:
                self._starting.cancel()  # without effect once the engine has started
        else:
            self.stop_now()

    def stop_within(self, seconds: float | None) -> float:
        """Drain, then end; what runs has ``seconds`` (None: drain_seconds), which are returned. Called again, the last
        word counts. To be called on the loop."""
        seconds = self._now().drain_seconds if seconds is None else seconds
        self.drain.begin()
        if self._stopping is not None:
            self._stopping.cancel()
        self._stopping = asyncio.create_task(self._stop_gently(seconds))
        return seconds

    def stop_now(self) -> None:
        """End what runs, and then the server, without waiting."""
        self.drain.cut()
        self.should_exit = True
        self.force_exit = True

    async def _stop_gently(self, seconds: float) -> None:
        if not await self.drain.idle(seconds):
            self.drain.cut()
            await self.drain.idle(_CUT_SECONDS)
        self.should_exit = True


class HttpServer(DrainingServer):
    """The server of one engine."""

    def __init__(
        self,
        config: ServerConfig,
        backend: Backend,
        *,
        engine: TokenEngine | None,
        adapters: AdapterHost | None = None,
        metrics: PrometheusMetrics | None,
        lifetime: Lifetime | None,
        reloader: Reloader | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        super().__init__(
            config,
            make=lambda server: make_app(
                backend,
                config,
                engine=engine,
                adapters=adapters,
                metrics=metrics,
                drain=server.drain,
                stop=server.stop_within,
                reloader=reloader,
                tracing=tracing,
            ),
            lifetime=lifetime,
            reload=None if reloader is None else reloader.reload,
            now=None if reloader is None else lambda: reloader.live.now,
        )


class _Once:
    """A lifetime whose ends may be reached by several ways; each is passed once."""

    def __init__(self, lifetime: Lifetime | None) -> None:
        self._lifetime = lifetime
        self._started = False

    async def start(self) -> None:
        if self._lifetime is not None and not self._started:
            self._started = True
            await self._lifetime.start()

    async def close(self) -> None:
        if self._lifetime is not None and self._started:
            self._started = False
            await self._lifetime.close()

"""What every request passes on its way in and out: id, Host check, key, the key's limits, errors as JSON, counting.

    request  -> id -> host -> key -> limits of the key -> routes
    response <- x-request-id <- error body <- count

Outermost of our own layers. Knows nothing of what the routes do.
"""

from __future__ import annotations

import ipaddress
import logging
import re
import sys
import uuid
from collections.abc import Iterable
from typing import Final

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidemill.core.account import NO_ACCOUNT
from tidemill.core.clock import Clock
from tidemill.core.config import ServerConfig
from tidemill.core.errors import Forbidden, InvalidRequest, TidemillError, Unauthorized
from tidemill.core.metrics import REQUEST_SECONDS, REQUESTS, Recorder
from tidemill.serve.access.admission import Admission, OwnAdmission
from tidemill.serve.access.caller import Caller
from tidemill.serve.access.key_ring import KeyRing
from tidemill.serve.answer import CallerGone
from tidemill.serve.listener import is_loopback
from tidemill.serve.live_config import LiveConfig
from tidemill.serve.refusal import ANTHROPIC_PATHS, refusal
from tidemill.serve.request_log import RequestLog
from tidemill.serve.tracing import HEADER as TRACE_HEADER
from tidemill.serve.tracing import RequestSpan, Tracing

__all__ = ["Door", "safe_request_id"]

_log = logging.getLogger(__name__)

OPEN_PATHS: Final = frozenset({"/", "/health", "/ready"})
"""Routes that ask for no key: probes have none."""
_CALLER_GONE: Final = 499
_MAX_ID: Final = 128
_LOGGED_BODY: Final = 64 << 10
"""Most bytes of a body that are logged."""


class Door:
    """ASGI middleware around the routes."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        live: LiveConfig,
        keys: KeyRing,
        recorder: Recorder,
        clock: Clock,
        endpoints: Iterable[str],
        tracing: Tracing | None = None,
        admission: Admission | None = None,
    ) -> None:
        """``admission``: who counts a key's requests; None: this process."""
        self._app = app
        self._admission = admission or OwnAdmission()
        self._keys = keys
        self._local_only = is_loopback(live.now.host)
        self._recorder = recorder
        self._clock = clock
        self._endpoints = frozenset(endpoints)
        self._tracing = tracing
        self._log: RequestLog | None = None
        live.follow(self._take)

    def _take(self, config: ServerConfig) -> None:
        self._hosts = frozenset(host.lower() for host in config.allowed_hosts)
        self._log = RequestLog(sys.stderr) if config.log_requests or config.log_prompts else None
        self._log_prompts = config.log_prompts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = self._clock.now()
        headers = Headers(scope=scope)
        request_id = safe_request_id(headers.get("x-request-id"))
        endpoint = _endpoint(scope["path"], self._endpoints)
        span = self._span(scope, headers, endpoint, request_id)
        scope.setdefault("state", {}).update(request_id=request_id, began=began, trace=span)
        out = _Outgoing(send, request_id, None if span is None else span.header)
        try:
            self._check_host(headers)
            await self._enter(self._caller(headers, scope["path"]), scope, receive, out)
        except (CallerGone, ClientDisconnect):
            out.status = _CALLER_GONE
        except TidemillError as error:
            await _refuse(error, scope, receive, out)
        except Exception:
            _log.exception("request %s failed", request_id)
            mistake = TidemillError("the server made a mistake with this request; its log has details")
            await _refuse(mistake, scope, receive, out)
        finally:
            self._recorder.add(REQUESTS, endpoint=endpoint, status=str(out.status))
            seconds = self._clock.now() - began
            self._recorder.observe(REQUEST_SECONDS, seconds, endpoint=endpoint)
            if self._log is not None:
                self._write_line(self._log, scope, endpoint, out.status, seconds)
            if span is not None:
                span.end(out.status)

    def _span(self, scope: Scope, headers: Headers, endpoint: str, request_id: str) -> RequestSpan | None:
        """Of what asks for work; what only looks would drown it."""
        if self._tracing is None or scope["method"] != "POST":
            return None
        return self._tracing.request(headers, method="POST", route=endpoint, request_id=request_id)

    def _write_line(self, log: RequestLog, scope: Scope, endpoint: str, status: int, seconds: float) -> None:
        state = scope["state"]
        caller, account = state.get("caller"), state.get("account")
        body = state.get("body") if self._log_prompts else None
        log.write(
            id=state["request_id"],
            key=(caller.name or None) if caller else None,
            method=scope["method"],
            route=endpoint,
            status=status,
            prompt_tokens=getattr(account, "prompt_tokens", None),
            output_tokens=getattr(account, "output_tokens", None),
            seconds=round(seconds, 4),
            body=None if body is None else body[:_LOGGED_BODY].decode("utf-8", "replace"),
        )

    def _check_host(self, headers: Headers) -> None:
        """Refuse names that are not ours: a web page whose name was pointed at this machine would send its own."""
        if len(headers.getlist("host")) > 1:
            raise InvalidRequest("there is more than one Host header", param="Host")
        host = _host_name(headers.get("host", ""))
        if host == "localhost" or host in self._hosts or "*" in self._hosts:
            return
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            address = None
        if address is None or (self._local_only and not address.is_loopback):
            said = f"names {host[:100]!r}" if host else "is missing, or names nothing"
            raise Forbidden(f"the Host header {said}, which is not in allowed_hosts", param="Host")

    async def _enter(self, caller: Caller, scope: Scope, receive: Receive, out: _Outgoing) -> None:
        """Let a caller in; what asks for work counts against their limits."""
        scope["state"].update(caller=caller, account=NO_ACCOUNT)
        if scope["method"] != "POST":
            await self._app(scope, receive, out)
            return
        async with self._admission.request(caller) as bill:
            scope["state"]["account"] = bill
            await self._app(scope, receive, out)

    def _caller(self, headers: Headers, path: str) -> Caller:
        """Whose key a request comes with; anybody's where none is asked for."""
        if not self._keys.asks or path in OPEN_PATHS:
            return self._keys.anybody
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if not scheme and path.startswith(ANTHROPIC_PATHS):
            scheme, given = "bearer", headers.get("x-api-key", "")
        if scheme.lower() != "bearer" or not given.strip():
            raise Unauthorized("an API key is needed: send the header Authorization: Bearer KEY", param="Authorization")
        offered = given.strip().encode("latin-1", "replace")
        caller = self._keys.find(offered)
        if caller is None:
            raise Unauthorized("the API key is not known here", param="Authorization")
        return caller


class _Outgoing:
    """The way back: adds the request id and remembers the status."""

    def __init__(self, send: Send, request_id: str, traceparent: str | None = None) -> None:
        self._send = send
        self._own = [(b"x-request-id", request_id.encode())]
        if traceparent is not None:
            self._own.append((TRACE_HEADER.encode(), traceparent.encode()))
        self.started = False
        self.status = _CALLER_GONE

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            self.status = message["status"]
            message = {**message, "headers": [*message["headers"], *self._own]}
        await self._send(message)


async def _refuse(error: TidemillError, scope: Scope, receive: Receive, out: _Outgoing) -> None:
    """Send the error, unless an answer has begun already: then the connection just ends."""
    if not out.started:
        await refusal(error, path=scope["path"])(scope, receive, out)


def safe_request_id(given: str | None) -> str:
    """The caller's id as far as it is harmless in headers, logs and bodies; without one, a new id."""
    cleaned = re.sub(r"[^A-Za-z0-9._:\-]", "_", given or "")[:_MAX_ID]
    return cleaned or uuid.uuid4().hex


def _host_name(host: str) -> str:
    """The Host header without its port: ``[::1]:8000`` is ``::1``."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if re.fullmatch(r"[^:]*:\d*", host) else host


def _endpoint(path: str, endpoints: frozenset[str]) -> str:
    """The route as a label; unknown paths share one, so that callers cannot make labels."""
    if path in endpoints:
        return path
    return "/v1/models/{id}" if path.startswith("/v1/models/") else "other"

"""Requests as OpenTelemetry spans, sent to a collector over OTLP/HTTP.

A request continues the trace of its ``traceparent`` header (W3C Trace Context), or begins one, and its answer says in
the same header which span it was. Spans are sent from a thread beside; where the collector is slow or away they are
dropped, never waited for. The variables OTEL_* of the SDK hold: sampling, headers, limits, the service's name.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from tidemill.core.clock import Clock, SystemClock
from tidemill.core.config import ServerConfig
from tidemill.core.errors import ConfigError
from tidemill.core.trace import TraceValue
from tidemill.core.version import __version__

__all__ = ["HEADER", "RequestSpan", "Tracing", "open_tracing"]

HEADER: Final = "traceparent"
_CARRIED: Final = (HEADER, "tracestate")
_NANOSECONDS: Final = 10**9
_CLOSE_SECONDS: Final = 3.0
"""How long the end waits for a collector to take what is left."""


class RequestSpan:
    """One request's span. Implements Trace."""

    def __init__(self, tracer: Any, span: Any, nanoseconds: Callable[[float], int], now: Callable[[], float]) -> None:
        from opentelemetry import trace

        self._tracer = tracer
        self._span = span
        self._nanoseconds = nanoseconds
        self._now = now
        self._context = trace.set_span_in_context(span)
        self._status = trace.Status(trace.StatusCode.ERROR)
        self._client = trace.SpanKind.CLIENT

    @property
    def header(self) -> str:
        """The value of ``traceparent`` that names this span."""
        context = self._span.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"

    def tell(self, name: str | None, attributes: Mapping[str, TraceValue]) -> None:
        """See Trace."""
        if name is not None:
            self._span.update_name(name)
        self._span.set_attributes(dict(attributes))

    def phase(self, name: str, begin: float, end: float) -> None:
        """See Trace."""
        span = self._tracer.start_span(name, context=self._context, start_time=self._nanoseconds(begin))
        span.end(self._nanoseconds(max(begin, end)))

    def call(self, name: str, attributes: Mapping[str, TraceValue]) -> RequestSpan:
        """A span of a request that we make for this one; its ``header`` goes with that request."""
        span = self._tracer.start_span(
            name,
            context=self._context,
            kind=self._client,
            start_time=self._nanoseconds(self._now()),
            attributes=dict(attributes),
        )
        return RequestSpan(self._tracer, span, self._nanoseconds, self._now)

    def close(self, problem: str) -> None:
        """The end of a call; ``problem``: why nothing came of it, or nothing."""
        if problem:
            self._span.set_attribute("error.type", problem[:200])
            self._span.set_status(self._status)
        self._span.end(self._nanoseconds(self._now()))

    def end(self, status: int) -> None:
        """The answer has gone out, with this status (499: the caller hung up)."""
        self._span.set_attribute("http.response.status_code", status)
        if status >= 400:
            self._span.set_attribute("error.type", str(status))
        if status >= 500:
            self._span.set_status(self._status)
        self._span.end(self._nanoseconds(self._now()))


class Tracing:
    """Makes a span per request. One per server."""

    def __init__(self, exporter: Any, *, clock: Clock | None = None, simple: bool = False) -> None:
        """``exporter``: an OpenTelemetry SpanExporter. ``simple``: hand it each span at once (tests)."""
        from opentelemetry import trace
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._exporter = exporter
        self._clock = clock or SystemClock()
        self._offset = time.time_ns() - int(self._clock.now() * _NANOSECONDS)
        named = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "tidemill"}
        self._provider = TracerProvider(resource=Resource.create({**named, "service.version": __version__}))
        self._provider.add_span_processor(SimpleSpanProcessor(exporter) if simple else BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("tidemill", __version__)
        self._propagator = TraceContextTextMapPropagator()
        self._server = trace.SpanKind.SERVER

    def request(self, headers: Mapping[str, str], *, method: str, route: str, request_id: str) -> RequestSpan:
        """The span of a request that has just come."""
        carried = {name: headers[name] for name in _CARRIED if name in headers}
        span = self._tracer.start_span(
            f"{method} {route}",
            context=self._propagator.extract(carried),
            kind=self._server,
            start_time=self._nanoseconds(self._clock.now()),
            attributes={"http.request.method": method, "http.route": route, "tidemill.request_id": request_id},
        )
        return RequestSpan(self._tracer, span, self._nanoseconds, self._clock.now)

    def close(self) -> None:
        """Send what is left, within a few seconds."""
        flush = threading.Thread(target=self._provider.force_flush, daemon=True)  # keeps to no time of its own
        flush.start()
        flush.join(_CLOSE_SECONDS)
        self._exporter.shutdown()  # before the provider, so that nobody tries again for long
        self._provider.shutdown()

    def _nanoseconds(self, seconds: float) -> int:
        """Since 1970."""
        return self._offset + int(seconds * _NANOSECONDS)


def open_tracing(config: ServerConfig) -> Tracing | None:
    """What the settings ask for. Raises ConfigError for an endpoint that is none, and without the extra."""
    endpoint = config.otlp_endpoint
    if endpoint is None:
        return None
    scheme, mark, place = endpoint.partition("://")
    if scheme not in ("http", "https") or not mark or not place or place.startswith("/"):
        raise ConfigError(
            f"otlp_endpoint takes http://HOST:PORT of a collector, as http://127.0.0.1:4318, not {endpoint!r:.100}",
            param="otlp_endpoint",
        )
    try:
        import opentelemetry.sdk.trace  # noqa: F401
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise ConfigError(
            "otlp_endpoint needs OpenTelemetry: pip install 'tidemill[otel]'", param="otlp_endpoint"
        ) from error
    path = "" if "/" in place.rstrip("/") else "/v1/traces"
    return Tracing(OTLPSpanExporter(endpoint=endpoint.rstrip("/") + path))

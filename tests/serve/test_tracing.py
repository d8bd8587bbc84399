"""A span per request, with its phases, in the caller's trace, and nothing of what was said."""

from __future__ import annotations

import asyncio
import gzip
import logging
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.server import serving
from tests.support.scripted_engine import Fault, ScriptedEngine, Step
from tests.support.toy_text import ToyText, toy_info
from tidemill.core.config import ServerConfig
from tidemill.core.embedding import Embedding
from tidemill.core.errors import ConfigError
from tidemill.core.tokens import TokenDelta
from tidemill.core.trace import TraceValue
from tidemill.frontend.backend import LocalBackend
from tidemill.frontend.request_trace import PhaseTimes
from tidemill.serve import tracing as tracing_module
from tidemill.serve.app import make_app
from tidemill.serve.tracing import Tracing, open_tracing

pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra otel is not installed")

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

TINY = Path(__file__).parents[1] / "golden" / "data" / "bert"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"


class Rig:
    def __init__(self, script: Any, embedding: Embedding | None = None) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracing = Tracing(self.exporter, simple=True)
        text = ToyText()
        engine = ScriptedEngine(script, info=toy_info(text, embedding=embedding))
        app = make_app(LocalBackend(engine, text), ServerConfig(), engine=engine, tracing=self.tracing)
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")

    async def chat(self, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
        body = {"model": "toy", "messages": [{"role": "user", "content": "tell-nobody"}], **fields}
        return await self.client.post("/v1/chat/completions", json=body, headers=headers)

    @property
    def spans(self) -> dict[str, Any]:
        return {span.name: span for span in self.exporter.get_finished_spans()}


@asynccontextmanager
async def rig(script: Any = b"ok", **more: Any) -> AsyncIterator[Rig]:
    one = Rig(list(script) if isinstance(script, bytes) else script, **more)
    async with one.client:
        yield one
    one.tracing.close()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_chat_is_a_span_with_its_phases_in_the_callers_trace(stream: bool) -> None:
    async with rig() as one:
        answer = await one.chat(
            {"traceparent": TRACEPARENT, "x-request-id": "mine"}, stream=stream, temperature=0.5, max_tokens=9, seed=3
        )
        assert answer.status_code == 200
        spans = one.spans
    request = spans["chat toy"]
    assert (request.context.trace_id, request.parent.span_id) == (int(TRACE, 16), int(PARENT, 16))
    assert request.kind.name == "SERVER"
    said = dict(request.attributes)
    assert said == {
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "tidemill.request_id": "mine",
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "tidemill",
        "gen_ai.request.model": "toy",
        "gen_ai.response.model": "toy",
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.frequency_penalty": 0.0,
        "gen_ai.request.presence_penalty": 0.0,
        "gen_ai.request.seed": 3,
        "gen_ai.usage.input_tokens": said["gen_ai.usage.input_tokens"],
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.response.finish_reasons": ("stop",),
    }
    assert said["gen_ai.usage.input_tokens"] > 5
    for name in ("queue", "prefill", "decode"):
        assert spans[name].parent.span_id == request.context.span_id
        assert request.start_time <= spans[name].start_time <= spans[name].end_time <= request.end_time
    assert spans["queue"].end_time == spans["prefill"].start_time
    assert spans["prefill"].end_time == spans["decode"].start_time
    assert answer.headers["traceparent"] == f"00-{TRACE}-{request.context.span_id:016x}-01"


async def test_nothing_of_what_was_said_is_in_any_span() -> None:
    async with rig(b"an-answer", embedding=None) as one:
        await one.chat(stop=["a-stop-text"], user="a-user", stream=True)
        await one.client.post("/v1/completions", json={"prompt": "tell-nobody", "echo": True})
        await one.client.post("/tokenize", json={"prompt": "tell-nobody"})
        shown = "".join(span.to_json() for span in one.exporter.get_finished_spans())
    for text in ("tell-nobody", "an-answer", "a-stop-text", "a-user"):
        assert text not in shown


@pytest.mark.parametrize("given", [None, "nonsense", f"00-{'0' * 32}-{PARENT}-01", f"ff-{TRACE}-{PARENT}-01"])
async def test_without_a_trace_of_the_caller_a_new_one_begins(given: str | None) -> None:
    async with rig() as one:
        answer = await one.chat({} if given is None else {"traceparent": given})
        (span,) = [span for name, span in one.spans.items() if name == "chat toy"]
    assert span.parent is None
    named = answer.headers["traceparent"]
    assert named.startswith(f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-")
    assert int(named[-2:], 16) & 1, "it is sampled"


async def test_a_caller_who_is_not_sampled_is_not_sent() -> None:
    async with rig() as one:
        answer = await one.chat({"traceparent": f"00-{TRACE}-{PARENT}-00"})
        assert answer.headers["traceparent"].startswith(f"00-{TRACE}-")
        assert answer.headers["traceparent"].endswith("-00")
        assert one.spans == {}


async def test_probes_and_pages_have_no_span_and_refusals_do() -> None:
    async with rig() as one:
        for path in ("/health", "/ready", "/metrics", "/v1/models"):
            assert "traceparent" not in (await one.client.get(path)).headers
        assert one.spans == {}
        await one.client.post("/v1/chat/completions", json={"messages": 3})
        (span,) = one.spans.values()
        assert span.name == "POST /v1/chat/completions"
        assert (span.attributes["http.response.status_code"], span.attributes["error.type"]) == (400, "400")
        assert span.status.status_code.name == "UNSET"


async def test_an_engine_that_dies_is_an_error_of_the_span() -> None:
    async with rig([Fault(raises=ConfigError("dead"))]) as one:
        assert (await one.chat()).status_code == 500
        span = one.spans["chat toy"]
    assert span.status.status_code.name == "ERROR"
    assert span.attributes["error.type"] == "500"
    assert span.attributes["gen_ai.response.finish_reasons"] == ("error",)
    assert {"queue"} == one.spans.keys() - {"chat toy"}


async def test_vectors() -> None:
    embedding = Embedding(width=4, pooling="mean", normalize=True)
    async with rig([], embedding=embedding) as one:
        answer = await one.client.post("/v1/embeddings", json={"input": "Hi"})
        assert answer.status_code == 200, answer.text
        said = one.spans["embeddings toy"].attributes
    assert (said["gen_ai.operation.name"], said["gen_ai.usage.input_tokens"]) == ("embeddings", 2)


class Told:
    """A Trace that remembers."""

    def __init__(self) -> None:
        self.phases: list[tuple[str, float, float]] = []

    def tell(self, name: str | None, attributes: dict[str, TraceValue]) -> None:
        pass

    def phase(self, name: str, begin: float, end: float) -> None:
        self.phases.append((name, begin, end))


def delta(choice: int, tokens: int = 1, began: float | None = None) -> TokenDelta:
    return TokenDelta(request_id="a", choice=choice, tokens=(5,) * tokens, began=began)


def test_phases_of_several_choices_are_the_first_begin_and_the_last_end() -> None:
    times, told = PhaseTimes(1.0), Told()
    times.saw(delta(1, began=4.0), 6.0)
    times.saw(delta(0, began=3.0), 7.0)
    times.saw(delta(0), 9.0)
    times.tell(told, 20.0)
    assert told.phases == [("queue", 1.0, 3.0), ("prefill", 3.0, 6.0), ("decode", 6.0, 9.0)]


def test_what_never_ran_only_queued_and_what_gave_nothing_only_read() -> None:
    for seen, phases in (
        ([], [("queue", 1.0, 20.0)]),
        ([(delta(0, tokens=0, began=2.0), 3.0)], [("queue", 1.0, 2.0), ("prefill", 2.0, 20.0)]),
    ):
        times, told = PhaseTimes(1.0), Told()
        for item, now in seen:
            times.saw(item, now)
        times.tell(told, 20.0)
        assert told.phases == phases


@contextmanager
def collector(status: int = 200, came: threading.Event | None = None) -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    """A collector on loopback: its address, and what it was sent."""
    got: list[tuple[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                data = gzip.decompress(data)
            got.append((self.path, ExportTraceServiceRequest.FromString(data)))
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()
            if came is not None:
                came.set()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", got
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_server_sends_its_spans_to_a_collector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    came = threading.Event()
    with collector(came=came) as (address, got):
        with serving(TINY, tmp_path / "log", "--threads", "1", "--otlp-endpoint", address) as server:
            httpx.post(
                f"{server.url}/v1/embeddings", json={"input": "tell-nobody"}, headers={"traceparent": TRACEPARENT}
            )
            assert came.wait(60)
        ((path, sent),) = got
    assert path == "/v1/traces"
    (of_resource,) = sent.resource_spans
    resource = {item.key: item.value.string_value for item in of_resource.resource.attributes}
    assert resource["service.name"] == "tidemill"
    (span,) = [span for scope in of_resource.scope_spans for span in scope.spans]
    assert (span.name, span.trace_id.hex(), span.parent_span_id.hex()) == ("embeddings m", TRACE, PARENT)
    assert b"tell-nobody" not in sent.SerializeToString()


@pytest.mark.parametrize("address", ["refuses", "gone"])
async def test_a_collector_that_is_away_costs_no_answer(
    address: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing_module, "_CLOSE_SECONDS", 0.05)
    caplog.set_level(logging.CRITICAL)
    with collector(status=400) as (refusing, _):
        endpoint = refusing if address == "refuses" else "http://127.0.0.1:9"
        tracing = open_tracing(ServerConfig(otlp_endpoint=endpoint))
        assert tracing is not None
        text = ToyText()
        engine = ScriptedEngine([Step(tokens=(65,))], info=toy_info(text))
        app = make_app(LocalBackend(engine, text), ServerConfig(), engine=engine, tracing=tracing)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            for _ in range(3):
                answer = await client.post("/v1/completions", json={"prompt": "Hi"})
                assert answer.status_code == 200
        await asyncio.to_thread(tracing.close)


@pytest.mark.parametrize(
    ("given", "path"), [("http://h:1", "/v1/traces"), ("http://h:1/", "/v1/traces"), ("http://h:1/x/y", "/x/y")]
)
def test_the_path_is_the_standard_one_unless_given(monkeypatch: pytest.MonkeyPatch, given: str, path: str) -> None:
    from opentelemetry.exporter.otlp.proto.http import trace_exporter

    seen: list[str] = []

    class Exporter(InMemorySpanExporter):
        def __init__(self, endpoint: str) -> None:
            super().__init__()
            seen.append(endpoint)

    monkeypatch.setattr(trace_exporter, "OTLPSpanExporter", Exporter)
    tracing = open_tracing(ServerConfig(otlp_endpoint=given))
    assert tracing is not None
    tracing.close()
    assert seen == ["http://h:1" + path]


@pytest.mark.parametrize("endpoint", ["127.0.0.1:4318", "grpc://h:1", "http://", "http:///x"])
def test_an_endpoint_that_is_none_is_one_line(endpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"otlp_endpoint takes http://HOST:PORT of a collector"):
        open_tracing(ServerConfig(otlp_endpoint=endpoint))


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match=r"otlp_endpoint needs OpenTelemetry: pip install 'tidemill\[otel\]'"):
        open_tracing(ServerConfig(otlp_endpoint="http://127.0.0.1:4318"))


def test_off_it_loads_nothing() -> None:
    script = (
        "import sys, tidemill.serve.server as s; from tidemill.core.config import ServerConfig;"
        "assert s.open_tracing(ServerConfig()) is None; assert not any('opentelemetry' in name for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)

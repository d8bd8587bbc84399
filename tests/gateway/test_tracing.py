"""One trace over a caller, the gateway, its attempts and the engines behind it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.conftest import CHAT, Behind
from tidemill.bench.scripted.script import ScriptedAnswer, Step
from tidemill.serve.tracing import Tracing

pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")

from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

GOOD = ScriptedAnswer(steps=(Step(role=True), Step(tokens=1, times=3), Step(finish="stop")))
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HEADERS = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "a=1"}


def hexed(span: Any) -> tuple[str, str]:
    return f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}"


async def test_attempts_hang_beneath_the_request_and_engines_beneath_the_attempts(behind: Behind) -> None:
    exporter = InMemorySpanExporter()
    tracing = Tracing(exporter, simple=True)
    async with behind(ScriptedAnswer(status=500), GOOD, tracing=tracing) as gateway:
        body = {**CHAT, "stream": True}
        answer = await gateway.client.post("/v1/chat/completions", json=body, headers=HEADERS)
        assert answer.status_code == 200
        await gateway.until(lambda: len(exporter.get_finished_spans()) == 3)
        sent = [server.seen[0].headers["traceparent"] for server in gateway.servers]
        assert gateway.servers[1].seen[0].headers["tracestate"] == "a=1"
    failed, good, request = exporter.get_finished_spans()
    assert hexed(request)[0] == TRACE
    assert f"{request.parent.span_id:016x}" == PARENT
    assert request.kind == SpanKind.SERVER
    assert answer.headers["traceparent"] == "00-{}-{}-01".format(*hexed(request))
    for attempt, header in zip((failed, good), sent, strict=True):
        assert attempt.kind == SpanKind.CLIENT
        assert attempt.parent.span_id == request.context.span_id
        assert header == "00-{}-{}-01".format(*hexed(attempt))
    assert (failed.status.status_code, good.status.status_code) == (StatusCode.ERROR, StatusCode.UNSET)
    assert "says 500" in failed.attributes["error.type"]
    assert [one.attributes["tidemill.replica"] for one in (failed, good)] == ["r0", "r1"]
    tracing.close()


async def test_an_answer_of_the_cache_has_no_attempt_and_says_so(behind: Behind) -> None:
    exporter = InMemorySpanExporter()
    tracing = Tracing(exporter, simple=True)
    async with behind(GOOD, cache={"megabytes": 1}, tracing=tracing) as gateway:
        for _ in range(2):
            await gateway.chat(temperature=0)
        await gateway.until(lambda: len(exporter.get_finished_spans()) == 3)
    kept = [span.attributes.get("tidemill.cache") for span in exporter.get_finished_spans()]
    assert sorted(kept, key=str) == [None, "hit", "miss"]
    tracing.close()


async def test_without_tracing_the_callers_trace_goes_on_untouched(behind: Behind) -> None:
    async with behind(GOOD) as gateway:
        await gateway.client.post("/v1/chat/completions", json={**CHAT, "stream": True}, headers=HEADERS)
        (seen,) = gateway.servers[0].seen
    assert {name: seen.headers[name] for name in HEADERS} == HEADERS

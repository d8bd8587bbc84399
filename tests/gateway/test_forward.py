"""Requests through the gateway: bytes untouched, failures before and after the first thing shown, counters at 0."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import ExitStack

import httpx
import pytest
from starlette.types import Message

from tests.gateway.conftest import CHAT, Behind, Gateway
from tidemill.bench.scripted.script import ScriptedAnswer, Step
from tidemill.bench.scripted.server import ScriptedServer
from tidemill.core.errors import DeadlineExceeded
from tidemill.core.metrics import NullRecorder
from tidemill.gateway.proxy.attempt import Attempt
from tidemill.gateway.proxy.outlet import Outlet
from tidemill.gateway.proxy.stream_watch import StreamWatch
from tidemill.gateway.routing.work import Work

GOOD = ScriptedAnswer(steps=(Step(role=True), Step(tokens=1, times=3)))
BEGUN = (Step(role=True), Step(tokens=1, times=3))


def events(text: str) -> list[str]:
    return [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]


def words(text: str) -> str:
    found = [json.loads(event) for event in events(text) if event != "[DONE]"]
    return "".join(c["delta"].get("content", "") for one in found for c in one.get("choices", ()))


async def test_a_stream_passes_byte_for_byte(behind: Behind) -> None:
    answer = ScriptedAnswer(steps=(Step(role=True), Step(comment="keep-alive"), Step(tokens=2, times=5)))
    async with behind(answer) as gateway:
        through = await gateway.chat(max_tokens=10, stream_options={"include_usage": True})
        async with httpx.AsyncClient(trust_env=False) as client:
            url = f"http://127.0.0.1:{gateway.ports[0]}/v1/chat/completions"
            body = {**CHAT, "stream": True, "max_tokens": 10, "stream_options": {"include_usage": True}}
            direct = await client.post(url, json=body)
    assert through.status_code == 200
    assert through.content == direct.content
    assert through.headers["content-type"] == direct.headers["content-type"]
    assert through.headers["x-tidemill-replica"] == "r0"
    assert 0 < float(through.headers["x-tidemill-added-ms"]) < 5000
    assert gateway.in_flight == [0]


async def test_the_body_passes_as_it_is_and_the_key_does_not(behind: Behind) -> None:
    async with behind(GOOD) as gateway:
        sent = b'{ "model":"scripted", "unknown_field": [1,2], "messages":[], "stream":true}'
        headers = {"content-type": "application/json", "authorization": "Bearer mine", "x-request-id": "abc"}
        answer = await gateway.client.post(
            "/v1/chat/completions", content=sent, headers={**headers, "x-request-timeout": "9", "x-team": "tide"}
        )
        (seen,) = gateway.servers[0].seen
    assert seen.body["unknown_field"] == [1, 2]
    assert "authorization" not in seen.headers
    assert seen.headers["x-team"] == "tide"
    assert seen.headers["x-request-id"] == answer.headers["x-request-id"] == "abc"
    assert 0 < float(seen.headers["x-request-timeout"]) <= 9


@pytest.mark.parametrize(
    "bad",
    [
        ScriptedAnswer(status=500),
        ScriptedAnswer(steps=(Step(disconnect=True),)),
        ScriptedAnswer(steps=(Step(error="out of memory"),)),
        ScriptedAnswer(steps=(Step(role=True), Step(error="out of memory"))),
        ScriptedAnswer(steps=(Step(role=True), Step(disconnect=True))),
        ScriptedAnswer(steps=(Step(role=True), Step(empty=True), Step(end=True))),
        ScriptedAnswer(steps=(Step(role=True), Step(after=30, tokens=1))),
        ScriptedAnswer(delay=30),
    ],
    ids=["500", "cut", "error", "error-after-role", "cut-after-role", "empty", "silent-after-role", "no-headers"],
)
async def test_what_fails_before_anything_is_shown_comes_from_elsewhere(bad: ScriptedAnswer, behind: Behind) -> None:
    async with behind(bad, GOOD, timeouts={"first_token_seconds": 0.3}) as gateway:
        answer = await gateway.chat()
        assert answer.status_code == 200
        assert answer.headers["x-tidemill-replica"] == "r1"
        assert words(answer.text) == " tide" * 3
        assert events(answer.text).count("[DONE]") == 1
        assert [len(server.seen) for server in gateway.servers] == [1, 1]
        assert gateway.in_flight == [0, 0]


@pytest.mark.parametrize(
    ("last", "says"),
    [
        (Step(disconnect=True), "broke off"),
        (Step(error="out of memory"), "out of memory"),
        (Step(after=30, tokens=1), "nothing came for"),
        (Step(end=True), "before it was complete"),
        (Step(raw='data: {"choices":[{"index":0,"delta":{"content":"ha', times=1), "before it was complete"),
    ],
    ids=["cut", "error", "silent", "ended", "half-an-event"],
)
async def test_what_fails_afterwards_ends_with_one_error_and_never_with_a_second_answer(
    last: Step, says: str, behind: Behind
) -> None:
    steps = (*BEGUN, last, Step(end=True)) if last.raw else (*BEGUN, last)
    async with behind(ScriptedAnswer(steps=steps), GOOD, timeouts={"silence_seconds": 0.3}) as gateway:
        answer = await gateway.chat()
        found = events(answer.text)
        assert words(answer.text) == " tide" * 3
        assert found[-1] == "[DONE]"
        assert found.count("[DONE]") == 1
        errors = [json.loads(event)["error"]["message"] for event in found[:-1] if '"error"' in event]
        assert len(errors) == 1
        assert says in errors[0]
        assert not gateway.servers[1].seen
        assert gateway.in_flight == [0, 0]


async def test_a_finished_answer_without_an_end_marker_gets_one(behind: Behind) -> None:
    answer = ScriptedAnswer(steps=(*BEGUN, Step(finish="stop"), Step(end=True)))
    async with behind(answer) as gateway:
        found = events((await gateway.chat()).text)
    assert found[-1] == "[DONE]"
    assert not any('"error"' in event for event in found)


@pytest.mark.parametrize("status", [400, 404, 422])
async def test_the_callers_mistakes_go_to_the_caller(status: int, behind: Behind) -> None:
    async with behind(ScriptedAnswer(status=status, message="your fault"), GOOD) as gateway:
        answers = [await gateway.chat() for _ in range(20)]
        assert [one.status_code for one in answers] == [status, 200] * 10
        assert answers[0].json()["error"]["message"] == "your fault"
        assert all(breaker.allows for one in gateway.fleet.upstreams for breaker in one.breakers.values())


async def test_a_full_replica_is_left_alone_for_as_long_as_it_says(behind: Behind) -> None:
    full = ScriptedAnswer(status=429, headers={"retry-after": "60"})
    async with behind(full, GOOD) as gateway:
        assert [(await gateway.chat()).status_code for _ in range(6)] == [200] * 6
        assert len(gateway.servers[0].seen) == 1


async def test_when_all_are_full_the_caller_is_told_when_to_come_back(behind: Behind) -> None:
    full = ScriptedAnswer(status=429, headers={"retry-after": "7"})
    async with behind(full, full) as gateway:
        first, second = await gateway.chat(), await gateway.chat()
    assert (first.status_code, first.headers["retry-after"]) == (429, "7")
    assert second.status_code == 503
    assert 5 <= int(second.headers["retry-after"]) <= 7


async def test_a_replica_that_fails_is_left_alone_and_tried_with_one_request(behind: Behind) -> None:
    rules = {"failures": 3, "open_seconds": 600, "longest_open_seconds": 600, "window_seconds": 3600}
    bad = (*(ScriptedAnswer(status=500),) * 3, *(GOOD,) * 100)
    async with behind(bad, GOOD, breaker=rules, retries={"least_per_second": 100}) as gateway:
        for _ in range(12):
            assert (await gateway.chat()).status_code == 200
        assert len(gateway.servers[0].seen) == 3
        gateway.clock.skip(601)
        for _ in range(4):
            assert (await gateway.chat()).status_code == 200
        assert len(gateway.servers[0].seen) > 3


async def test_attempts_and_retries_are_bounded(behind: Behind) -> None:
    bad = ScriptedAnswer(status=500, message="broken")
    async with behind(bad, bad, bad, bad, breaker={"failures": 1000}) as gateway:
        answer = await gateway.chat()
        assert (answer.status_code, answer.json()["error"]["message"]) == (500, "broken")
        assert sum(len(server.seen) for server in gateway.servers) == 3
        for _ in range(60):
            await gateway.chat()
        sent = sum(len(server.seen) for server in gateway.servers)
        assert sent < 61 + 10 + 0.2 * 61 + 30, "retries are a part of the requests"


async def test_a_caller_who_hangs_up_ends_the_request_at_the_replica(behind: Behind) -> None:
    endless = ScriptedAnswer(steps=(Step(role=True), Step(after=0.01, tokens=1, times=100_000)))
    async with behind(endless) as gateway:
        async with gateway.client.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}) as answer:
            async for _ in answer.aiter_bytes():
                break
        await gateway.until(lambda: gateway.servers[0].cut == 1)
        await gateway.until(lambda: gateway.in_flight == [0])
        (breaker,) = gateway.fleet.upstreams[0].breakers.values()
        assert breaker.allows
        assert not breaker._outcomes, "a caller who leaves says nothing about the replica"


async def test_a_deadline_ends_a_request_before_and_after_it_is_shown(behind: Behind) -> None:
    slow = ScriptedAnswer(delay=30)
    endless = ScriptedAnswer(steps=(Step(role=True), Step(after=0.01, tokens=1, times=100_000)))
    async with behind((slow, endless)) as gateway:
        body, limit = {**CHAT, "stream": True}, {"x-request-timeout": "0.3"}
        first = await gateway.client.post("/v1/chat/completions", json=body, headers=limit)
        assert (first.status_code, first.json()["error"]["code"]) == (504, "deadline_exceeded")
        second = await gateway.client.post("/v1/chat/completions", json=body, headers=limit)
        assert second.status_code == 200
        assert json.loads(events(second.text)[-2])["error"]["code"] == "deadline_exceeded"
        assert events(second.text)[-1] == "[DONE]"
        await gateway.until(lambda: gateway.servers[0].cut == 2)
        assert gateway.in_flight == [0]


async def test_a_deadline_behind_a_whole_answer_is_no_error(behind: Behind) -> None:
    assert_well_ended(await _late(behind, Step(after=30, tokens=1)))


async def test_an_error_behind_a_whole_answer_is_none(behind: Behind) -> None:
    assert_well_ended(await _late(behind, Step(error="out of memory")))


async def test_a_deadline_while_the_end_is_being_sent_is_no_error_and_no_second_end() -> None:
    """The caller takes nothing any more when the last of an answer comes."""
    sent: list[bytes] = []

    async def send(message: Message) -> None:
        sent.append(message.get("body", b""))
        if b"[DONE]" in sent[-1] and len(sent) == 2:
            await asyncio.sleep(30)

    out = Outlet(send, "openai", stall_seconds=60)
    await out.start(200, [], streaming=True)
    watch = StreamWatch("openai")
    passed = watch.feed(b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n')
    out.ending = watch.ending
    sending = asyncio.create_task(out.body(passed))
    await asyncio.sleep(0)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    await out.cut(DeadlineExceeded("the request's time is over"))
    assert b"".join(sent) == passed


async def test_an_attempt_is_over_also_where_its_end_is_cancelled(behind: Behind) -> None:
    """Somebody hangs up in the moment in which an answer has ended and its connection is being given back."""
    answer = ScriptedAnswer(steps=(*BEGUN, Step(finish="stop"), Step(after=30, tokens=1)))
    async with behind(answer) as gateway:
        upstream = gateway.fleet.upstreams[0]
        permit = upstream.breaker("scripted").enter()
        assert permit is not None
        scope = ExitStack()
        scope.enter_context(permit)
        flight = scope.enter_context(upstream.flight(Work(tokens=10)))
        attempt = Attempt(upstream=upstream, permit=permit, flight=flight, scope=scope, record={})
        attempt.inflow.start(upstream.client, upstream.client.request("/models", {}, b"", method="GET"))
        await attempt.inflow.begun()
        ending = asyncio.create_task(attempt.end("answered", NullRecorder()))
        await asyncio.sleep(0)
        ending.cancel()
        await asyncio.gather(ending, return_exceptions=True)
        assert ending.cancelled()
        assert gateway.in_flight == [0]


async def _late(behind: Behind, step: Step) -> str:
    late = ScriptedAnswer(steps=(*BEGUN, Step(finish="stop"), step))
    async with behind(late) as gateway:
        body, limit = {**CHAT, "stream": True}, {"x-request-timeout": "0.3"}
        return (await gateway.client.post("/v1/chat/completions", json=body, headers=limit)).text


def assert_well_ended(text: str) -> None:
    found = events(text)
    assert found.count("[DONE]") == 1
    assert found[-1] == "[DONE]"
    assert not any('"error"' in event for event in found)


async def test_counters_return_to_zero_whatever_callers_and_replicas_do(behind: Behind) -> None:
    """A third is dropped before headers, a third in the middle; replicas err, and one is restarted."""
    slow = ScriptedAnswer(delay=0.02, steps=(Step(role=True), Step(after=0.002, tokens=1, times=20)))
    scripts = [
        (slow, slow, ScriptedAnswer(status=500)),
        (slow, ScriptedAnswer(steps=(*BEGUN, Step(disconnect=True)))),
        (slow,),
    ]
    async with behind(*scripts, policy="least-load", breaker={"failures": 10_000}) as gateway:

        async def one(number: int) -> str:
            if number % 3 == 0:
                _, writer = await ask(gateway)
                await asyncio.sleep(0.001 * (number % 7))
                writer.transport.abort()
                return "dropped"
            body = {**CHAT, "stream": True}
            async with gateway.client.stream("POST", "/v1/chat/completions", json=body) as answer:
                async for _ in answer.aiter_bytes():
                    if number % 3 == 1:
                        return "left"
            return "read"

        ways: Counter[str] = Counter()
        for batch in range(10):
            ways.update(await asyncio.gather(*(one(20 * batch + n) for n in range(20))))
            if batch == 5:
                await restarted(gateway, 2)
        assert ways.total() == 200
        await gateway.until(lambda: gateway.in_flight == [0, 0, 0])
        before = len(gateway.servers[2].seen)
        for _ in range(30):
            await gateway.chat()
        assert 5 <= len(gateway.servers[2].seen) - before <= 25, "the restarted one gets about its part"
        await gateway.until(lambda: gateway.drain.active == 0)


async def restarted(gateway: Gateway, place: int) -> None:
    await gateway.servers[place].close()
    await gateway.servers[place].start("127.0.0.1", gateway.ports[place])


async def test_a_slow_reader_slows_the_replica_and_not_the_gateways_memory(behind: Behind) -> None:
    """The answer is far larger than what may wait; as long as nobody reads, the gateway does not read either."""
    text = json.dumps({"choices": [{"index": 0, "delta": {"content": "y" * 65536}}]})
    flood = ScriptedAnswer(steps=(Step(role=True), *[Step(raw=f"data: {text}\n\n")] * 600))
    async with behind(flood) as gateway:
        reader, writer = await ask(gateway)
        await reader.readexactly(1000)
        left = [0]
        while len(left) < 40 or len({*left[-40:]}) > 1:  # until nothing moves any more
            await asyncio.sleep(0.005)
            left.append(unsent(gateway.servers[0]))
        assert left[-1] > 2**23
        size = 0
        while size < 2**24:  # more than was on its way: reading goes on
            size += len(await reader.read(2**20))
        writer.transport.abort()
        await gateway.until(lambda: gateway.in_flight == [0])


async def ask(gateway: Gateway) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a chat on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port, limit=2**16)
    body = json.dumps({**CHAT, "stream": True})
    head = ("POST /v1/chat/completions HTTP/1.1", "Host: localhost", "Content-Type: application/json")
    writer.write("\r\n".join((*head, f"Content-Length: {len(body)}", "", body)).encode())
    return reader, writer


def unsent(server: ScriptedServer) -> int:
    """Bytes that nobody has taken, besides what the system keeps for a connection."""
    transports = [one._transport for one in server._connections if one._transport is not None]
    return sum(transport.get_write_buffer_size() for transport in transports)

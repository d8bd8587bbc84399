"""Answers given again, and shared while they come, through a gateway on a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from tests.gateway.cache.gated_server import GatedServer
from tests.gateway.conftest import CHAT, Behind, Gateway
from tidemill.bench.scripted.script import ScriptedAnswer, Step
from tidemill.gateway.cache.recording import Recording

ON = {"megabytes": 1}
SAME = {"temperature": 0}
STREAM = ScriptedAnswer(steps=(Step(role=True), Step(tokens=1, times=3), Step(finish="stop")))
USAGE = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}


def whole_answer(text: str = " tide tide", *, finish: str = "stop", **message: Any) -> ScriptedAnswer:
    said = {"role": "assistant", "content": text, **message}
    body = {
        **{"id": "chatcmpl-0", "object": "chat.completion", "created": 0, "model": "scripted"},
        "choices": [{"index": 0, "message": said, "logprobs": None, "finish_reason": finish}],
        "usage": USAGE,
    }
    return as_json(body)


def as_json(body: object) -> ScriptedAnswer:
    return ScriptedAnswer(
        headers={"content-type": "application/json"}, steps=(Step(raw=json.dumps(body)), Step(end=True))
    )


def events(text: str) -> list[Any]:
    found = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert found[-1] == "[DONE]"
    return [json.loads(event) for event in found[:-1]]


def words(text: str) -> str:
    return "".join(one["delta"].get("content") or "" for event in events(text) for one in event["choices"])


def said(answer: httpx.Response) -> str | None:
    """What the gateway says of its cache."""
    return answer.headers.get("x-tidemill-cache")


async def metric(gateway: Gateway, name: str) -> float:
    page = (await gateway.client.get("/metrics")).text
    return float(next(line.split()[1] for line in page.splitlines() if line.startswith(name)))


async def test_the_same_request_is_answered_without_a_replica(behind: Behind) -> None:
    async with behind(STREAM, cache=ON) as gateway:
        first, second = [await gateway.chat(**SAME) for _ in range(2)]
        assert (said(first), said(second)) == ("miss", "hit")
        assert words(first.text) == words(second.text) == " tide" * 3
        assert {event["id"] for event in events(first.text)} == {"scripted-0"}
        (own,) = {event["id"] for event in events(second.text)}
        assert own not in ("scripted-0", events((await gateway.chat(**SAME)).text)[0]["id"])
        assert second.text.replace(own, "scripted-0") == first.text
        assert second.headers["content-type"].startswith("text/event-stream")
        assert float(second.headers["x-tidemill-added-ms"]) > 0
        assert "x-tidemill-replica" not in second.headers
        assert len(gateway.servers[0].seen) == 1
        found = (await gateway.client.get(f"/admin/decisions/{second.headers['x-request-id']}")).json()
        assert found["outcome"] == "from the cache"
        counts = {
            name: await metric(gateway, f'tidemill_gateway_cache_requests_total{{outcome="{name}"}}')
            for name in ("miss", "hit")
        }
        assert counts == {"miss": 1, "hit": 2}
        assert await metric(gateway, "tidemill_gateway_cache_answers") == 1
        assert await metric(gateway, "tidemill_gateway_cache_bytes") > len(first.content)
        await gateway.until(lambda: gateway.in_flight == [0] and gateway.drain.active == 0)


async def test_it_is_off_unless_it_is_asked_for(behind: Behind) -> None:
    async with behind(STREAM) as gateway:
        assert [said(await gateway.chat(**SAME)) for _ in range(2)] == [None, None]
        assert len(gateway.servers[0].seen) == 2


CHANGES: dict[str, dict[str, Any]] = {
    "system-prompt": {"messages": [{"role": "system", "content": "Be brief."}, *CHAT["messages"]]},
    "tools": {"tools": [{"type": "function", "function": {"name": "look"}}]},
    "schema": {"response_format": {"type": "json_object"}},
    "model": {"model": "other"},
    "seeded": {"temperature": 1, "seed": 1},
    "n": {"n": 2},
    "max-tokens": {"max_tokens": 9},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_another_request_never_gets_the_answer(change: dict[str, Any], behind: Behind) -> None:
    models = {"models": ("scripted", "other")}
    async with behind(STREAM, cache=ON) as gateway:
        (upstream,) = gateway.fleet.upstreams
        upstream.change(upstream.own.model_copy(update=models), gateway.fleet.config)
        assert said(await gateway.chat(**SAME)) == "miss"
        assert said(await gateway.chat(**{**SAME, **change})) == "miss"
        assert said(await gateway.chat(**SAME)) == "hit"
        assert said(await gateway.chat(**{**SAME, **change})) == "hit"
        assert len(gateway.servers[0].seen) == 2


async def test_what_is_drawn_is_neither_kept_nor_shared_unless_the_settings_say_so(behind: Behind) -> None:
    async with behind(STREAM, cache=ON) as gateway:
        assert [said(await gateway.chat(temperature=1)) for _ in range(2)] == [None, None]
    async with behind(STREAM, cache={**ON, "sampled": True}) as gateway:
        assert [said(await gateway.chat(temperature=1)) for _ in range(2)] == ["miss", "hit"]
        assert said(await gateway.chat(temperature=0)) == "miss"


async def test_tenants_never_share(behind: Behind) -> None:
    """Tenants are those of the keys; what a caller says of themselves in the body or a header is no tenant."""
    async with behind(STREAM, cache=ON, server={"api_keys": ["sk-one", "sk-two"]}) as gateway:
        found = []
        for key in ("one", "two", "one", "two"):
            headers = {"authorization": f"Bearer sk-{key}"}
            answer = await gateway.client.post(
                "/v1/chat/completions", json={**CHAT, **SAME, "stream": True}, headers=headers
            )
            found.append(said(answer))
        assert found == ["miss", "miss", "hit", "hit"]
        assert (await gateway.chat(**SAME)).status_code == 401


NOT_KEPT = {
    "400": ScriptedAnswer(status=400),
    "429": ScriptedAnswer(status=429),
    "500": ScriptedAnswer(status=500),
    "length": ScriptedAnswer(steps=(Step(role=True), Step(tokens=1), Step(finish="length"))),
    "cut": ScriptedAnswer(steps=(Step(role=True), Step(tokens=1), Step(disconnect=True))),
    "error": ScriptedAnswer(steps=(Step(role=True), Step(tokens=1), Step(error="out of memory"))),
    "ended": ScriptedAnswer(steps=(Step(role=True), Step(tokens=1), Step(end=True))),
    "empty": ScriptedAnswer(steps=(Step(role=True), Step(finish="stop"))),
    "call": ScriptedAnswer(steps=(Step(role=True), Step(tokens=1, channel="tool"), Step(finish="tool_calls"))),
    "whole": whole_answer(),
}


@pytest.mark.parametrize("bad", NOT_KEPT.values(), ids=NOT_KEPT)
async def test_only_complete_answers_are_kept(bad: ScriptedAnswer, behind: Behind) -> None:
    async with behind((bad, STREAM), cache=ON) as gateway:
        await gateway.chat(**SAME)
        assert len(gateway.servers[0].seen) == 1
        gateway.clock.skip(100)  # the replica is left alone no longer
        again = await gateway.chat(**SAME)
        assert (again.status_code, said(again), words(again.text)) == (200, "miss", " tide" * 3)
        assert said(await gateway.chat(**SAME)) == "hit"


@pytest.mark.parametrize(
    "bad", [whole_answer(finish="length"), whole_answer(""), whole_answer(tool_calls=[{"id": "c"}])]
)
async def test_only_complete_answers_are_kept_that_are_no_streams(bad: ScriptedAnswer, behind: Behind) -> None:
    async with behind((bad, whole_answer()), cache=ON) as gateway:
        found = [await gateway.chat(**SAME, stream=False) for _ in range(3)]
        assert [said(one) for one in found] == ["miss", "miss", "hit"]
        assert found[2].json()["choices"] == found[1].json()["choices"]


async def test_a_whole_answer_is_given_again_as_a_stream(behind: Behind) -> None:
    async with behind(whole_answer(), cache=ON) as gateway:
        first = await gateway.chat(**SAME, stream=False)
        again = await gateway.chat(**SAME, stream=False)
        plain = await gateway.chat(**SAME)
        counted = await gateway.chat(**SAME, stream_options={"include_usage": True})
        assert [said(one) for one in (first, again, plain, counted)] == ["miss", "hit", "hit", "hit"]
        assert len(gateway.servers[0].seen) == 1
        assert again.headers["content-type"] == "application/json"
        assert again.json() == {**first.json(), "id": again.json()["id"]}
        assert words(plain.text) == words(counted.text) == " tide tide"
        assert plain.headers["content-type"].startswith("text/event-stream")
        assert all(event["object"] == "chat.completion.chunk" for event in events(counted.text))
        assert [event["usage"] for event in events(counted.text) if "usage" in event] == [USAGE]
        assert events(counted.text)[-1]["choices"] == []
        assert not any("usage" in event for event in events(plain.text))
        ids = {one["id"] for one in (first.json(), again.json(), events(plain.text)[0], events(counted.text)[0])}
        assert len(ids) == 4


async def test_a_stream_is_given_again_as_a_whole_if_its_usage_is_known(behind: Behind) -> None:
    async with behind((STREAM, whole_answer("other"), STREAM), cache=ON) as gateway:
        counted = {"stream_options": {"include_usage": True}}
        first = await gateway.chat(**SAME, **counted)
        whole = await gateway.chat(**SAME, stream=False)
        assert (said(first), said(whole)) == ("miss", "hit")
        (choice,) = whole.json()["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == (" tide" * 3, "stop")
        assert whole.json()["usage"] == events(first.text)[-1]["usage"]
        assert said(await gateway.chat(**SAME)) == "hit"
    async with behind((STREAM, whole_answer("other")), cache=ON) as gateway:
        assert said(await gateway.chat(**SAME)) == "miss"
        whole = await gateway.chat(**SAME, stream=False)
        assert (said(whole), whole.json()["choices"][0]["message"]["content"]) == ("miss", "other")


async def test_embeddings_and_completions_are_given_again(behind: Behind) -> None:
    text = {"id": "cmpl-0", "object": "text_completion", "created": 0, "model": "scripted", "usage": USAGE}
    choice = {"index": 0, "text": "tide", "logprobs": None, "finish_reason": "stop"}
    async with behind(as_json({**text, "choices": [choice]}), cache=ON) as gateway:
        body = {"model": "scripted", "prompt": "Why?", "temperature": 0}
        found = [await gateway.client.post("/v1/completions", json=body) for _ in range(2)]
        assert [said(one) for one in found] == ["miss", "hit"]
        stream = await gateway.client.post("/v1/completions", json={**body, "stream": True})
        assert said(stream) == "hit"
        assert "".join(one["text"] for event in events(stream.text) for one in event["choices"]) == "tide"


async def test_callers_may_ask_for_a_fresh_answer_or_for_none_to_be_kept(behind: Behind) -> None:
    async with behind(STREAM, cache=ON) as gateway:
        found = []
        for wants in ("no-store", "", "no-cache", ""):
            body, headers = {**CHAT, **SAME, "stream": True}, {"cache-control": wants} if wants else {}
            answer = await gateway.client.post("/v1/chat/completions", json=body, headers=headers)
            found.append(said(answer))
        assert found == [None, "miss", "miss", "hit"]


async def test_other_replicas_mean_an_empty_cache(behind: Behind) -> None:
    async with behind(STREAM, cache=ON) as gateway:
        fleet = gateway.fleet
        await gateway.chat(**SAME)
        fleet._read = lambda: fleet.config.model_copy(update={"shed_seconds": 9.0})
        fleet.reload()
        assert said(await gateway.chat(**SAME)) == "hit"
        moved = fleet.config.replicas[0].model_copy(update={"name": "new"})
        fleet._read = lambda: fleet.config.model_copy(update={"replicas": (moved,)})
        fleet.reload()
        fleet.upstreams[0].healthy = True
        assert said(await gateway.chat(**SAME)) == "miss"


# --- one flight for many


@asynccontextmanager
async def gated(behind: Behind) -> AsyncIterator[tuple[Gateway, GatedServer]]:
    server = GatedServer()
    replica = {"name": "r0", "url": f"http://127.0.0.1:{await server.start()}/v1"}
    try:
        async with behind(cache=ON, replicas=[replica]) as gateway:
            yield gateway, server
    finally:
        await server.close()


class Caller:
    """Somebody who reads a stream as it comes."""

    def __init__(self, gateway: Gateway, **headers: str) -> None:
        body = {**CHAT, **SAME, "stream": True}
        self._asked = gateway.client.stream("POST", "/v1/chat/completions", json=body, headers=headers)
        self.text = ""

    async def begin(self) -> str | None:
        """Read the first of it."""
        self.answer = await self._asked.__aenter__()
        assert self.answer.status_code == 200
        self._pieces = self.answer.aiter_text()
        self.text += await anext(self._pieces)
        assert "ebb" in self.text
        return said(self.answer)

    async def end(self) -> str:
        """Read the rest."""
        async for piece in self._pieces:
            self.text += piece
        await self._asked.__aexit__(None, None, None)
        return self.text

    async def leave(self) -> None:
        """Hang up."""
        await self._asked.__aexit__(None, None, None)


async def test_the_same_requests_at_one_time_are_one_request(behind: Behind) -> None:
    """Each sees what there is at once, not when all of it is there."""
    async with gated(behind) as (gateway, server):
        callers = [Caller(gateway) for _ in range(4)]
        assert [await caller.begin() for caller in callers] == ["miss", "joined", "joined", "joined"]
        assert gateway.in_flight == [1]
        server.gate.set()
        texts = [await caller.end() for caller in callers]
        assert {words(text) for text in texts} == {"ebb flow"}
        assert len({event["id"] for text in texts for event in events(text)}) == 4
        assert server.seen == 1
        assert await metric(gateway, 'tidemill_gateway_cache_requests_total{outcome="joined"}') == 3
        assert said(await gateway.chat(**SAME)) == "hit"
        await gateway.until(lambda: gateway.in_flight == [0] and gateway.drain.active == 0)


async def test_when_the_first_hangs_up_the_others_get_the_whole_answer(behind: Behind) -> None:
    async with gated(behind) as (gateway, server):
        first, second = Caller(gateway), Caller(gateway)
        assert (await first.begin(), await second.begin()) == ("miss", "joined")
        await first.leave()
        await gateway.until(lambda: gateway.drain.active == 2)  # the answer, and the one who is left
        server.gate.set()
        assert words(await second.end()) == "ebb flow"
        assert (server.seen, server.cut) == (1, 0)
        assert said(await gateway.chat(**SAME)) == "hit"


async def test_when_all_hang_up_the_replica_hears_it_and_nothing_is_kept(behind: Behind) -> None:
    async with gated(behind) as (gateway, server):
        first, second = Caller(gateway), Caller(gateway)
        await first.begin()
        await second.begin()
        await first.leave()
        await second.leave()
        await gateway.until(lambda: server.cut == 1)
        await gateway.until(lambda: gateway.in_flight == [0] and gateway.drain.active == 0)
        server.gate.set()
        assert said(await gateway.chat(**SAME)) == "miss"
        assert server.seen == 2


async def test_the_firsts_deadline_is_not_the_others(behind: Behind) -> None:
    async with gated(behind) as (gateway, server):
        body, limit = {**CHAT, **SAME, "stream": True}, {"x-request-timeout": "0.7"}
        first = asyncio.create_task(gateway.client.post("/v1/chat/completions", json=body, headers=limit))
        await gateway.until(lambda: server.seen == 1 or first.done())
        second = Caller(gateway)
        await second.begin()
        assert "deadline_exceeded" in (await first).text
        server.gate.set()
        assert words(await second.end()) == "ebb flow"


@pytest.mark.parametrize("rest", [Step(after=30, tokens=1), Step(error="out of memory")], ids=["silence", "an error"])
async def test_a_deadline_behind_a_whole_answer_is_no_error(rest: Step, behind: Behind) -> None:
    """Whoever waits for the same answer has been shown all of it: what follows for others is not theirs to wait for."""
    late = ScriptedAnswer(steps=(Step(role=True), Step(tokens=1, times=3), Step(finish="stop"), rest))
    async with behind(late, cache=ON) as gateway:
        body, limit = {**CHAT, **SAME, "stream": True}, {"x-request-timeout": "0.3"}
        asked = [gateway.client.post("/v1/chat/completions", json=body, headers=limit) for _ in range(2)]
        for answer in await asyncio.gather(*asked):
            lines = [line for line in answer.text.splitlines() if line.startswith("data: ")]
            assert lines.count("data: [DONE]") == 1, answer.text
            assert lines[-1] == "data: [DONE]"
            assert '"error"' not in answer.text
            assert "stop" in lines[-2]


async def test_the_end_of_an_answer_is_of_the_pieces_that_a_reader_has() -> None:
    endings = iter((None, b"marker", b"marker"))
    recording = Recording(1000, done=lambda _: None, left=lambda _: None, ending=lambda: next(endings))
    with recording.reader() as quick, recording.reader() as slow:
        for piece in (b"text", b"stop", b"usage"):
            await recording.send({"type": "http.response.body", "body": piece, "more_body": True})
        assert [(await quick.next(), quick.ending) for _ in range(3)] == [
            *[(b"text", None), (b"stop", b"marker"), (b"usage", b"marker")]
        ]
        await recording.send({"type": "http.response.body", "body": b"marker"})
        assert (await quick.next(), quick.ending) == (b"marker", b"")
        assert (await slow.next(), slow.ending) == (b"text", None)


async def test_whatever_callers_and_replicas_do_nothing_is_left_running_or_kept_by_mistake(behind: Behind) -> None:
    """Few questions, many callers: some leave before anything comes, some in the middle; replicas err and break off."""
    slow = ScriptedAnswer(
        delay=0.01, steps=(Step(role=True), Step(after=0.01, tokens=1, times=10), Step(finish="stop"))
    )
    cut = ScriptedAnswer(steps=(Step(role=True), Step(tokens=1, times=2), Step(disconnect=True)))
    scripts = [(slow, ScriptedAnswer(status=500), cut), (slow, slow, cut)]
    async with behind(*scripts, cache=ON, breaker={"failures": 10_000}, retries={"least_per_second": 1000}) as gateway:

        async def one(number: int) -> tuple[str, str | None]:
            body = {**CHAT, "stream": True, "temperature": 0, "max_tokens": 10 + (number % 3 == 0) + 2 * (number // 40)}
            request = gateway.client.build_request("POST", "/v1/chat/completions", json=body)
            if number % 3 == 0:
                asked = asyncio.create_task(gateway.client.send(request))
                for _ in range(number % 7):
                    await asyncio.sleep(0.001)
                asked.cancel()
                await asyncio.gather(asked, return_exceptions=True)
                return "dropped", None
            answer = await gateway.client.send(request, stream=True)
            if number % 3 == 1:
                await anext(answer.aiter_bytes())
                await answer.aclose()
                return "left", said(answer)
            text = (await answer.aread()).decode()
            assert answer.status_code == 200, text
            assert text.count("data: [DONE]") == 1
            assert (words_until_an_error(text) == " tide" * 10) != ('"error"' in text), "whole, or one error"
            assert '"error"' not in text or said(answer) != "hit"
            return "read", said(answer)

        found = [end for batch in range(6) for end in await asyncio.gather(*(one(20 * batch + n) for n in range(20)))]
        assert {way for way, _ in found} == {"dropped", "left", "read"}
        assert "miss" in {how for _, how in found}
        await gateway.until(lambda: gateway.in_flight == [0, 0] and gateway.drain.active == 0)
        cache = gateway.fleet.cache
        await gateway.until(lambda: not cache._running)
        assert not cache._coming
        assert cache.bytes == sum(kept.size for _, kept in cache._kept.values())


def words_until_an_error(text: str) -> str:
    return "".join(one["delta"].get("content") or "" for event in events(text) for one in event.get("choices", ()))

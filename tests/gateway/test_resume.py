"""Answers that break after some of them was shown, and are gone on with by another replica."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.gateway.conftest import Gateway, before
from tests.support.reciter import Reciter
from tidemill.bench.scripted.script import ScriptedAnswer, Step

WORDS = ["Der ", "Mond ", "zieht ", "das ", "Meer", ", ", "é", "in ", "Brocken ", '"gross"', "\\ ", "und ", "潮", "汐."]
CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "Warum?"}],
    "stream": True,
    "stream_options": {"include_usage": True},
}
TEXT: dict[str, Any] = {"model": "m", "prompt": "Warum? ", "stream": True, "stream_options": {"include_usage": True}}
PATIENT = {
    "retries": {"least_per_second": 1000},
    "breaker": {"failures": 10**6},
    "probes": {"interval_seconds": 3600},
}

STREAM = Reciter(WORDS, []).stream(CHAT)


@dataclass
class Read:
    """A stream as its caller sees it."""

    text: str
    ids: set[str]
    roles: int
    ends: list[str]
    usages: list[dict[str, Any]]
    errors: list[dict[str, Any]]
    markers: int


def read(content: str) -> Read:
    found = Read("", set(), 0, [], [], [], 0)
    for line in content.splitlines():
        if not line.startswith("data: "):
            assert line == ""
            continue
        if line == "data: [DONE]":
            found.markers += 1
            continue
        assert not found.markers, "nothing comes behind the end"
        event = json.loads(line.removeprefix("data: "))
        if "error" in event:
            found.errors.append(event["error"])
            continue
        found.ids.add(event.get("id", ""))
        found.usages += [event["usage"]] if event.get("usage") else []
        for choice in event["choices"]:
            delta = choice.get("delta", {})
            found.roles += "role" in delta
            found.text += delta.get("content") or choice.get("text") or ""
            found.ends += [choice["finish_reason"]] if choice.get("finish_reason") else []
    return found


@asynccontextmanager
async def reciting(*engines: str, cuts: list[int], **settings: Any) -> AsyncIterator[tuple[Gateway, Sequence[Reciter]]]:
    async with AsyncExitStack() as stack:
        reciters = [Reciter(WORDS, cuts) for _ in engines]
        ports = []
        for one in reciters:
            ports.append(await one.start())
            stack.push_async_callback(one.close)
        gateway = await stack.enter_async_context(before([], ports, kinds=engines, **{**PATIENT, **settings}))
        yield gateway, reciters


@pytest.mark.parametrize(("path", "body"), [("chat/completions", CHAT), ("completions", TEXT)], ids=["chat", "text"])
async def test_wherever_a_stream_is_cut_its_caller_sees_one_whole_answer(path: str, body: dict[str, Any]) -> None:
    """Every place in the bytes of a stream: before anything is shown, within events and characters, after the end."""
    cuts: list[int] = []
    async with reciting("vllm", "tidemill", cuts=cuts) as (gateway, reciters):
        length = len(reciters[0].stream(body))
        for cut in range(0, length, 3):
            cuts[:] = [cut]
            found = read((await gateway.client.post(f"/v1/{path}", json=body)).text)
            assert found.text == "".join(WORDS), cut
            assert found.ends == ["stop"]
            assert found.markers == 1
            assert not found.errors
            assert found.roles == (path == "chat/completions")
            assert len(found.ids) == 1
            assert len(found.usages) <= 1, "an answer that is complete but for its usage has none"
            for usage in found.usages:
                assert (usage["prompt_tokens"], usage["completion_tokens"]) == (7, len(WORDS))
            assert gateway.in_flight == [0, 0]
        page = (await gateway.client.get("/metrics")).text
        assert 'tidemill_gateway_broken_streams_total{outcome="resumed"}' in page
        assert 'tidemill_gateway_broken_streams_total{outcome="ended"}' not in page


async def test_the_rest_is_asked_for_with_what_was_shown_and_the_limits_that_are_left() -> None:
    async with reciting("vllm", "tidemill", cuts=[STREAM.index(b"Meer") - 30]) as (gateway, reciters):
        asked = {**CHAT, "max_tokens": 10, "min_tokens": 6, "seed": 3}
        answer = await gateway.client.post("/v1/chat/completions", json=asked)
        found = read(answer.text)
        (again,) = [body for one in reciters for body in one.seen if len(body["messages"]) == 2]
        assert again["messages"][-1] == {"role": "assistant", "content": "Der Mond zieht das "}
        assert again["continue_final_message"] is True
        assert again["add_generation_prompt"] is False
        assert (again["max_tokens"], again["min_tokens"], again["seed"]) == (6, 2, 3)
        assert found.text == "".join(WORDS[:10])
        assert found.ends == ["length"]
        assert found.usages[0]["resumed"] == {"times": 1, "tokens": 4}
        explained = await gateway.client.get(f"/admin/decisions/{answer.headers['x-request-id']}")
        first, second = explained.json()["attempts"]
        assert "broke" in first["outcome"]
        assert second["resumes_after_tokens"] == 4
        assert explained.json()["outcome"] == "answered"


async def test_the_rest_looks_like_what_was_shown_and_not_like_what_was_held_back() -> None:
    """The first attempt breaks behind its role, the second behind a word, and the third goes on."""
    cuts = [STREAM.index(b"Der"), STREAM.index(b"zieht")]
    async with reciting("tidemill", "tidemill", "tidemill", cuts=cuts) as (gateway, _):
        answer = await gateway.client.post("/v1/chat/completions", json=CHAT)
        found = read(answer.text)
        place = int(answer.headers["x-tidemill-replica"].removeprefix("r"))
        assert found.text == "".join(WORDS)
        assert found.ids == {f"id-{gateway.ports[place]}"}


async def test_an_answer_that_had_all_its_tokens_ends_without_asking_anybody() -> None:
    body = {**CHAT, "max_tokens": 3}
    cut = Reciter(WORDS, []).stream(body).index(b'"length"') - 5
    async with reciting("tidemill", "tidemill", cuts=[cut]) as (gateway, reciters):
        found = read((await gateway.client.post("/v1/chat/completions", json=body)).text)
        assert (found.text, found.ends, found.markers, found.errors) == ("Der Mond zieht ", ["length"], 1, [])
        assert len(found.ids) == 1
        assert sum(len(one.seen) for one in reciters) == 1


@pytest.mark.parametrize(("attempts", "texts"), [(1, "Der Mond "), (2, "Der Mond zieht das "), (0, "Der ")])
async def test_a_second_break_ends_it_with_one_error_unless_more_is_allowed(attempts: int, texts: str) -> None:
    """Each replica shows one more word and breaks."""
    cuts = [STREAM.index(b"Mond") - 20] * 5
    settings = {"resume": {"attempts": attempts}}
    async with reciting("tidemill", "tidemill", "tidemill", cuts=cuts, **settings) as (gateway, reciters):
        found = read((await gateway.client.post("/v1/chat/completions", json=CHAT)).text)
        shown = "".join(WORDS[: attempts + 1])
        assert found.text == shown
        assert texts.startswith(shown)
        assert len(found.errors) == 1
        assert (found.ends, found.markers, found.roles) == ([], 1, 1)
        assert sum(len(one.seen) for one in reciters) == attempts + 1
        assert gateway.in_flight == [0, 0, 0]
        assert 'streams_total{outcome="ended"} 1.0' in (await gateway.client.get("/metrics")).text


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2},
        {"logprobs": True},
        {"response_format": {"type": "json_object"}},
        {"guided_regex": "a+"},
        {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]},
    ],
    ids=lambda fields: next(iter(fields)),
)
async def test_what_the_second_half_could_not_keep_to_ends_with_one_error(fields: dict[str, Any]) -> None:
    async with reciting("tidemill", "tidemill", cuts=[500]) as (gateway, reciters):
        answer = await gateway.client.post("/v1/chat/completions", json={**CHAT, **fields})
        found = read(answer.text)
        assert found.text
        assert len(found.errors) == 1
        assert found.markers == 1
        assert sum(len(one.seen) for one in reciters) == 1
        explained = await gateway.client.get(f"/admin/decisions/{answer.headers['x-request-id']}")
        assert "not gone on with" in explained.json()["outcome"]


async def test_an_engine_that_cannot_go_on_is_not_asked() -> None:
    async with reciting("openai", "tgi", cuts=[500]) as (gateway, reciters):
        answer = await gateway.client.post("/v1/chat/completions", json=CHAT)
        found = read(answer.text)
        assert len(found.errors) == 1
        assert sum(len(one.seen) for one in reciters) == 1


BEGUN = (Step(role=True), Step(tokens=1, times=3))
REST = ScriptedAnswer(steps=(Step(role=True), Step(tokens=1, times=2)))


@pytest.mark.parametrize(
    ("steps", "resumed"),
    [
        ((*BEGUN, Step(error="out of memory")), True),
        ((*BEGUN, Step(after=30, tokens=1)), True),
        ((*BEGUN, Step(end=True)), True),
        ((*BEGUN, Step(raw='data: {"error": {"code": "deadline_exceeded", "message": "late"}}\n\n')), False),
        ((*BEGUN, Step(raw='data: {"choices":[{"index":0,"delta":{"tool_calls":[{}]}}]}\n\n'), Step(end=True)), False),
        ((*BEGUN, Step(raw='data: {"choices":[{"index":0,"delta":{"reasoning":"h"}}]}\n\n'), Step(end=True)), False),
    ],
    ids=["error", "silence", "ended", "the caller's error", "call", "reasoning"],
)
async def test_ways_to_break(steps: tuple[Step, ...], resumed: bool, behind: Any) -> None:
    settings = {**PATIENT, "timeouts": {"silence_seconds": 0.3}, "kinds": ("tidemill", "tidemill")}
    async with behind(ScriptedAnswer(steps=steps), REST, **settings) as gateway:
        found = read((await gateway.chat()).text)
    assert found.text == " tide" * (5 if resumed else 3)
    assert len(found.errors) == (not resumed)
    assert found.markers == 1
    assert [len(server.seen) for server in gateway.servers] == [1, int(resumed)]


async def test_the_cache_does_not_keep_what_two_replicas_made() -> None:
    """The first answer breaks, the second does not: only the second is kept."""
    cuts = [STREAM.index(b"Meer") - 30]
    async with reciting("vllm", "tidemill", cuts=cuts, cache={"megabytes": 1}) as (gateway, _):
        asked = {**CHAT, "temperature": 0}
        answers = [await gateway.client.post("/v1/chat/completions", json=asked) for _ in range(3)]
    usages = [read(answer.text).usages[0] for answer in answers]
    assert ["resumed" in usage for usage in usages] == [True, False, False]
    assert [answer.headers["x-tidemill-cache"] for answer in answers] == ["miss", "miss", "hit"]

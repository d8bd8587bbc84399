"""Whom a prompt's tokens are asked of, and when nobody is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tidemill.core.clock import ManualClock
from tidemill.gateway.config import GatewayConfig, ReplicaConfig
from tidemill.gateway.kv_events.prompt_tokens import PromptTokens
from tidemill.gateway.routing.told_blocks import ToldBlocks
from tidemill.gateway.upstream import Upstream

CHAT = {"model": "m", "messages": [{"role": "user", "content": "?"}], "temperature": 0.5}


class Asked(Upstream):
    """Notes what it is asked."""

    def __init__(self, name: str, clock: ManualClock, *, told: bool = True) -> None:
        own = ReplicaConfig(name=name, url="http://127.0.0.1:1/v1", engine="vllm")
        super().__init__(own, GatewayConfig(), clock)
        self.healthy = True
        self.questions: list[Any] = []
        self.answer: tuple[int, bytes] | Exception = (200, b'{"count": 3, "tokens": [5, 6, 7]}')
        if told:
            self.replica.told = ToldBlocks()
            self.replica.told.clear()

    async def ask(self, path: str, body: bytes, *, seconds: float) -> tuple[int, bytes]:
        assert (path, seconds) == ("/tokenize", 0.05)
        self.questions.append(json.loads(body))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Bench:
    def __init__(self, *, told: bool = True, count: int = 2) -> None:
        self.clock = ManualClock()
        self.upstreams = [Asked(f"r{n}", self.clock, told=told) for n in range(count)]
        self.tokens = PromptTokens(self.clock, most_tokens=100)

    async def length(
        self, body: Any = CHAT, *, path: str = "/v1/chat/completions", policy: str = "prefix-aware"
    ) -> int | None:
        raw = json.dumps(body).encode()
        found = await self.tokens.of(path, raw, "m", policy, self.upstreams, seconds=0.05)
        return None if found is None else len(found)

    @property
    def questions(self) -> list[Any]:
        return [question for one in self.upstreams for question in one.questions]


async def test_a_prompt_is_asked_for_once() -> None:
    bench = Bench()
    assert [await bench.length(), await bench.length({**CHAT, "temperature": 1})] == [3, 3]
    assert bench.questions == [{"model": "m", "messages": CHAT["messages"]}]


@pytest.mark.parametrize("policy", ["least-load", "round-robin"])
async def test_nobody_is_asked_where_the_policy_does_not_look(policy: str) -> None:
    bench = Bench()
    assert await bench.length(policy=policy) is None
    assert bench.questions == []


async def test_nobody_is_asked_without_events_or_with_one_replica() -> None:
    for bench in (Bench(told=False), Bench(count=1)):
        assert await bench.length() is None
        assert bench.questions == []


async def test_salts_other_routes_and_strange_prompts_stay_a_guess() -> None:
    bench = Bench()
    assert await bench.length({**CHAT, "cache_salt": "x"}) is None
    assert await bench.length(path="/v1/messages") is None
    for prompt in (7, ["a", "b"], [-1], []):
        assert await bench.length({"prompt": prompt}, path="/v1/completions") is None
    assert bench.questions == []
    assert await bench.length({"prompt": [1, 2]}, path="/v1/completions") == 2


@pytest.mark.parametrize("answer", [(400, b"{}"), (200, b"no"), (200, b'{"tokens": [-1]}'), (200, b'{"tokens": []}')])
async def test_an_answer_without_tokens_is_none(answer: tuple[int, bytes]) -> None:
    bench = Bench()
    for one in bench.upstreams:
        one.answer = answer
    assert await bench.length() is None


async def test_one_that_is_too_slow_is_left_alone_for_a_second() -> None:
    bench = Bench()
    bench.upstreams[0].answer = TimeoutError()
    assert [await bench.length(), await bench.length()] == [None, 3]
    assert [len(one.questions) for one in bench.upstreams] == [1, 1]
    bench.clock.advance(1.5)
    assert await bench.length({"messages": []}) is None
    assert len(bench.upstreams[0].questions) == 2


async def test_what_is_kept_is_bounded() -> None:
    bench = Bench()
    for number in range(20):
        await bench.length({"messages": [{"role": "user", "content": str(number)}]})
    await bench.length({"messages": [{"role": "user", "content": "0"}]})
    assert len(bench.questions) == 21
    await bench.length({"messages": [{"role": "user", "content": "0"}]})
    assert len(bench.questions) == 21

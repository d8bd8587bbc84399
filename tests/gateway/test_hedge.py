"""A second replica for requests that wait: whoever shows something first has it, and nothing stays behind."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.gateway.conftest import CHAT, Behind, Gateway
from tidemill.bench.scripted.script import ScriptedAnswer, Step

GOOD = ScriptedAnswer(steps=(Step(role=True), Step(tokens=1, times=3), Step(finish="stop")))
SLOW = ScriptedAnswer(delay=30)
SOON: dict[str, Any] = {"hedge": {"after_seconds": 0.05, "share": 1.0}}


async def hedges(gateway: Gateway) -> dict[str, float]:
    page = (await gateway.client.get("/metrics")).text
    lines = [line for line in page.splitlines() if line.startswith("tidemill_gateway_hedges_total{")]
    return {line.split('"')[1]: float(line.split()[-1]) for line in lines}


@pytest.mark.parametrize(
    "waits",
    [SLOW, ScriptedAnswer(steps=(Step(role=True), Step(after=30, tokens=1)))],
    ids=["no headers", "a role and nothing"],
)
async def test_a_replica_that_shows_nothing_loses_to_the_next(waits: ScriptedAnswer, behind: Behind) -> None:
    async with behind(waits, GOOD, **SOON) as gateway:
        answer = await gateway.chat()
        assert answer.headers["x-tidemill-replica"] == "r1"
        assert answer.text.count(" tide") == 3
        assert answer.text.count("[DONE]") == 1
        await gateway.until(lambda: gateway.in_flight == [0, 0] and gateway.servers[0].cut == 1)
        assert await hedges(gateway) == {"won": 1.0}
        explained = (await gateway.client.get(f"/admin/decisions/{answer.headers['x-request-id']}")).json()
        assert [one["outcome"] for one in explained["attempts"]] == ["cancelled", "answered"]
        assert explained["attempts"][1]["hedge"] is True
        assert all(not breaker._outcomes for breaker in gateway.fleet.upstreams[0].breakers.values()), "slow is not bad"


async def test_the_first_may_still_be_the_first(behind: Behind) -> None:
    late = ScriptedAnswer(delay=0.3, steps=(Step(role=True), Step(tokens=1, times=2), Step(finish="stop")))
    async with behind(late, SLOW, **SOON) as gateway:
        answer = await gateway.chat()
        assert answer.headers["x-tidemill-replica"] == "r0"
        assert answer.text.count(" tide") == 2
        await gateway.until(lambda: gateway.in_flight == [0, 0] and gateway.servers[1].cut == 1)
        assert await hedges(gateway) == {"lost": 1.0}


async def test_one_that_fails_leaves_it_to_the_other(behind: Behind) -> None:
    late = ScriptedAnswer(delay=0.3, steps=(Step(role=True), Step(tokens=1, times=2), Step(finish="stop")))
    async with behind(late, ScriptedAnswer(status=500), **SOON) as gateway:
        answer = await gateway.chat()
        assert (answer.status_code, answer.headers["x-tidemill-replica"]) == (200, "r0")
        await gateway.until(lambda: gateway.in_flight == [0, 0])
        (breaker,) = gateway.fleet.upstreams[1].breakers.values()
        assert len(breaker._outcomes) == 1, "a failure counts, needed or not"


async def test_where_both_fail_a_third_is_asked(behind: Behind) -> None:
    bad = ScriptedAnswer(delay=0.2, status=500)
    async with behind(bad, bad, GOOD, **SOON) as gateway:
        answer = await gateway.chat()
        assert (answer.status_code, answer.headers["x-tidemill-replica"]) == (200, "r2")
        await gateway.until(lambda: gateway.in_flight == [0, 0, 0])


async def test_a_whole_answer_is_raced_for_as_well(behind: Behind) -> None:
    said = {"choices": [{"index": 0, "message": {"content": "a"}, "finish_reason": "stop"}]}
    whole = ScriptedAnswer(
        headers={"content-type": "application/json"}, steps=(Step(raw=json.dumps(said)), Step(end=True))
    )
    async with behind(SLOW, whole, **SOON) as gateway:
        answer = await gateway.client.post("/v1/chat/completions", json=CHAT)
        assert answer.json() == said
        await gateway.until(lambda: gateway.in_flight == [0, 0])


@pytest.mark.parametrize(
    "setting", [{}, {"hedge": {"after_seconds": None}}, {"hedge": {"after_seconds": 0.05, "share": 0}}]
)
async def test_nobody_is_asked_twice_unless_it_is_wished_for(setting: dict[str, Any], behind: Behind) -> None:
    late = ScriptedAnswer(delay=0.3, steps=(Step(tokens=1), Step(finish="stop")))
    async with behind((late,) * 40, GOOD, policy="weighted", **setting) as gateway:
        gateway.fleet.upstreams[1].replica.weight = 0
        assert (await gateway.chat()).headers["x-tidemill-replica"] == "r0"
        assert not gateway.servers[1].seen


async def test_a_caller_who_leaves_ends_both(behind: Behind) -> None:
    async with behind(SLOW, SLOW, **SOON) as gateway:
        asking = asyncio.create_task(gateway.chat())
        await gateway.until(lambda: gateway.in_flight == [1, 1])
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await gateway.until(lambda: gateway.in_flight == [0, 0] and gateway.drain.active == 0)
        assert all(one.cut == 1 for one in gateway.servers)

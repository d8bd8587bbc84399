"""Alive is not ready, and what the metrics page says."""

from __future__ import annotations

import asyncio
import re

from tidemill.core.errors import EngineDied
from tidemill.core.metrics import METRICS
from tidemill.serve import app as app_module


async def test_alive_and_ready_differ(http):
    async with http([]) as served:
        served.engine.not_ready = "no step for 60 s while 3 requests wait"
        alive, ready = await served.client.get("/health"), await served.client.get("/ready")
    assert (alive.status_code, alive.json()) == (200, {"status": "alive"})
    assert ready.status_code == 503
    assert ready.headers["retry-after"] == "1"
    assert ready.json()["error"]["message"] == "no step for 60 s while 3 requests wait"


async def test_ready_while_the_engine_is(http):
    async with http([]) as served:
        ready = await served.client.get("/ready")
    assert (ready.status_code, ready.json()) == (200, {"status": "ready"})


async def test_an_engine_that_does_not_answer_is_not_ready(http, monkeypatch):
    monkeypatch.setattr(app_module, "_READY_SECONDS", 0.05)
    async with http([]) as served:
        served.engine.ready = asyncio.Event().wait
        ready = await served.client.get("/ready")
        alive = await served.client.get("/health")
    assert (ready.status_code, alive.status_code) == (503, 200)
    assert "did not say within 0.05 s" in ready.json()["error"]["message"]


async def test_not_ready_while_draining(http):
    async with http(list(b"ok")) as served:
        served.drain.begin()
        ready, alive, chat = await served.client.get("/ready"), await served.client.get("/health"), await served.chat()
    assert (ready.status_code, alive.status_code, chat.status_code) == (503, 200, 503)
    assert ready.json()["error"]["message"].startswith("draining")
    assert chat.json()["error"]["code"] == "draining"
    assert chat.headers["retry-after"] == "1"


async def test_while_draining_bodies_are_not_even_read(http):
    async with http([]) as served:
        served.drain.begin()
        answer = await served.client.post("/v1/completions", content=b"{", headers={"content-type": "application/json"})
    assert answer.status_code == 503


async def test_a_body_that_was_on_its_way_when_draining_began_is_too_late(http):
    async with http(list(b"ok")) as served:

        async def pieces():
            yield b'{"prompt": '
            served.drain.begin()
            yield b'"x"}'

        answer = await served.client.post(
            "/v1/completions", content=pieces(), headers={"content-type": "application/json"}
        )
    assert answer.status_code == 503
    assert served.engine.requests == []


async def test_a_dead_engine_is_503_for_whole_answers_and_before_streams(http):
    async with http([]) as served:
        served.engine.die()
        for stream in (False, True):
            answer = await served.chat(stream=stream)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_died")
            assert answer.headers["retry-after"] == "1"
        served.engine.revive()
        assert (await served.chat()).status_code == 200


async def test_eight_streams_over_a_dying_engine_each_end_with_one_error(serve):
    async with serve(list(b"abcdefgh") * 100, step_delay=0.002) as served:
        streams = [asyncio.create_task(served.chat(stream=True)) for _ in range(8)]
        await served.engine.until(lambda: served.engine.steps > 40)
        served.engine.die()
        answers = await asyncio.gather(*streams)
    for answer in answers:
        events = answer.text.split("\n\n")
        assert events[-2:] == ["data: [DONE]", ""]
        assert f'"code":"{EngineDied.code}"' in events[-3]
        assert answer.text.count('"error"') == 1


async def test_a_full_queue_is_429(http):
    async with http(list(b"ok"), max_requests=0) as served:
        answer = await served.chat(stream=True)
    assert (answer.status_code, answer.json()["error"]["type"]) == (429, "rate_limit_error")
    assert answer.headers["retry-after"] == "1"


async def test_each_of_many_requests_to_a_queue_of_ten_is_answered(http):
    """At once where there is no room, with when to come again; and those that are let in get their answers."""
    async with http(list(b"ok"), max_requests=10) as served:
        served.engine.open.clear()
        asked = [asyncio.create_task(served.complete(stream=place % 2 == 0)) for place in range(300)]
        await served.engine.until(lambda: sum(task.done() for task in asked) == 290)
        served.engine.open.set()
        answers = await asyncio.gather(*asked)
        assert served.engine.active == served.drain.active == 0
    refused = [answer for answer in answers if answer.status_code == 429]
    assert len(refused) == 290
    assert all(answer.json()["error"]["code"] == "overloaded" for answer in refused)
    assert all(1 <= int(answer.headers["retry-after"]) <= 30 for answer in refused)
    served_texts = [answer.text for answer in answers if answer.status_code == 200]
    assert len(served_texts) == 10
    assert all('"finish_reason":"stop"' in text for text in served_texts)


async def test_the_metrics_page(http):
    async with http(list(b"abc")) as served:
        await served.chat(n=2)
        await served.chat(stream=True, temperature=-1)
        await served.client.get("/nowhere/at/all")
        page = await served.client.get("/metrics")
    assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = page.text.splitlines()
    for wanted in (
        'tidemill_requests_total{endpoint="/v1/chat/completions",status="200"} 1.0',
        'tidemill_requests_total{endpoint="/v1/chat/completions",status="400"} 1.0',
        'tidemill_requests_total{endpoint="other",status="404"} 1.0',
        'tidemill_request_seconds_count{endpoint="/v1/chat/completions"} 2.0',
        "tidemill_requests_active 0.0",
        "tidemill_time_to_first_token_seconds_count 1.0",
        "tidemill_time_per_output_token_seconds_count 4.0",
        "tidemill_prompt_tokens_total 20.0",
        "tidemill_generation_tokens_total 8.0",
        'tidemill_finished_choices_total{reason="stop"} 2.0',
        "tidemill_engine_steps_total 8.0",
        "tidemill_engine_kv_blocks 64.0",
        "tidemill_engine_kv_blocks_free 64.0",
        'tidemill_engine_finished_total{reason="stop"} 3.0',
        "tidemill_engine_restarts_total 0.0",
    ):
        assert wanted in lines


async def test_every_metric_is_on_the_page_with_its_help(http):
    async with http([]) as served:
        page = (await served.client.get("/metrics")).text
    shown = dict(re.findall(r"^# HELP ((?:tidemill_|vllm:)\S+) (.+)$", page, re.M))
    # That of adapters is there with --max-loras alone.
    there = [spec for spec in METRICS if spec.name != "vllm:lora_requests_info"]
    assert shown == {spec.name: spec.help for spec in there}
    kinds = dict(re.findall(r"^# TYPE ((?:tidemill_|vllm:)\S+) (\S+)$", page, re.M))
    assert kinds == {spec.name: str(spec.kind) for spec in there}

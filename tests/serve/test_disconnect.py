"""Hanging up ends the work, streamed or not, in whatever state it is; slow readers are bounded."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from tests.support.scripted_engine import Step
from tests.support.toy_text import ToyText
from tidemill.core.config import ServerConfig

ENDLESS = {"model": "toy", "ignore_eos": True, "max_tokens": 2000}
ROUTES = {
    "/v1/chat/completions": {**ENDLESS, "messages": [{"role": "user", "content": "Hi"}]},
    "/v1/completions": {**ENDLESS, "prompt": ["a", "b"]},
    "/v1/responses": {"model": "toy", "ignore_eos": True, "max_output_tokens": 2000, "input": "Hi"},
    "/v1/messages": {"model": "toy", "max_tokens": 2000, "messages": [{"role": "user", "content": "Hi"}]},
}
ONE_CHOICE = ("/v1/responses", "/v1/messages")
"""Routes without n."""


@asynccontextmanager
async def _request(port: int, route: str, **fields: object):
    """A raw connection on which a request has been sent."""
    if route in ONE_CHOICE:
        del fields["n"]
    body = json.dumps({**ROUTES[route], **fields}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    writer.write(
        f"POST {route} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n".encode()
        + body
    )
    await writer.drain()
    yield reader, writer
    writer.close()


@pytest.mark.parametrize("state", ["queued", "prefill", "decode"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("route", "n"), [(route, n) for route in ROUTES for n in (1, 4) if n == 1 or route not in ONE_CHOICE]
)
async def test_hanging_up_ends_the_work(serve, route, stream, n, state):
    script = [Step(tokens=(65,), delay=30.0 if state == "prefill" else 0.0), *[66] * 2000]
    choices = n * (2 if route == "/v1/completions" else 1)
    async with serve(script, step_delay=0.002) as served:
        if state == "queued":
            served.engine.open.clear()
        async with _request(served.port, route, stream=stream, n=n):
            await served.engine.until(lambda: served.engine.active == choices)
            if state == "decode":
                await served.engine.until(lambda: served.engine.steps >= 3 * choices)
        before = served.engine.steps
        await served.engine.until(lambda: served.engine.active == 0)
        assert served.engine.steps - before <= 2 * choices
        assert len(served.engine.aborted) == choices
        await served.engine.until(lambda: served.drain.active == 0)
        metrics = served.metrics.page().decode()
    assert f'tidemill_requests_total{{endpoint="{route}",status="499"}} 1.0' in metrics
    assert f'tidemill_finished_choices_total{{reason="abort"}} {choices}.0' in metrics


async def test_an_answer_read_to_its_end_is_not_taken_for_a_hang_up(serve):
    async with serve(list(b"abc")) as served:
        for stream in (False, True):
            assert (await served.chat(stream=stream)).status_code == 200
        assert served.engine.aborted == []


async def test_a_reader_that_reads_nothing_is_let_go(serve, caplog):
    """The socket's buffers fill, the stream waits, and after slow_reader_seconds the work ends."""
    config = ServerConfig(slow_reader_seconds=0.3)
    text = ToyText(["x" * 100_000])
    async with serve([258] * 1000, text=text, config=config) as served:
        async with _request(served.port, "/v1/completions", prompt="a", stream=True):
            await served.engine.until(lambda: served.engine.steps > 0)
            await served.engine.until(lambda: served.engine.active == 0, seconds=10.0)
        assert served.engine.steps < 1000
        assert len(served.engine.aborted) == 1
    assert "broke off" not in caplog.text

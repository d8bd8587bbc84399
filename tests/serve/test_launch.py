"""An engine that starts with the server: what is said of it before, while and after it runs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.scripted_engine import ScriptedEngine
from tests.support.toy_text import ToyText, toy_info
from tidemill.core.errors import DoesNotFit, Unavailable
from tidemill.core.requests import ChatRequest
from tidemill.core.sampling import SamplingOptions
from tidemill.serve.launch import LaunchedBackend

TEXT = ToyText()
REQUEST = ChatRequest(model="toy", sampling=SamplingOptions(), messages=({"role": "user", "content": "hi"},))


class Refusing(ScriptedEngine):
    """An engine that cannot start."""

    async def start(self) -> None:
        raise DoesNotFit("too large")


def scripted() -> ScriptedEngine:
    return ScriptedEngine(list(b"ahoy"), info=toy_info(TEXT))


def launched(engine: Any) -> LaunchedBackend:
    return LaunchedBackend(engine, TEXT, model="toy")


async def test_before_the_start_requests_are_told_to_wait() -> None:
    backend = launched(scripted())
    assert backend.models == ("toy",)
    assert await backend.ready() == "the model is loading"
    with pytest.raises(Unavailable, match="the model is loading"):
        await backend.open(REQUEST)


async def test_after_the_start_it_answers() -> None:
    engine = scripted()
    backend = launched(engine)
    await backend.start()
    assert await backend.ready() is None
    reply = await backend.open(REQUEST)
    (event,) = [event async for event in reply.events]
    assert event.payload["choices"][0]["message"]["content"] == "ahoy"
    await backend.close()
    assert (engine.started, engine.closed) == (1, 1)


async def test_what_stops_the_engine_is_raised_and_nothing_is_ready() -> None:
    backend = launched(Refusing([], info=toy_info(TEXT)))
    with pytest.raises(DoesNotFit, match="too large"):
        await backend.start()
    assert await backend.ready() == "the model is loading"

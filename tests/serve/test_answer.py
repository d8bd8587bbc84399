"""Answers of any Backend, not only of ours: raw bytes pass, and trouble becomes one error event and an end marker."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping

import httpx
import pytest

from tidemill.core.config import ServerConfig
from tidemill.core.errors import EngineDied
from tidemill.core.events import DONE, Event, Reply
from tidemill.core.requests import GenerationRequest
from tidemill.serve import sse
from tidemill.serve.app import make_app

HELLO = {"messages": [{"role": "user", "content": "Hi"}]}


class _Remote:
    """A backend that replies with what it was made with; an exception among the events is raised there."""

    models = ("far",)

    def __init__(self, *events: Event | Exception, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        self._events = events
        self._status = status
        self._headers = headers or {}
        self.requests: list[GenerationRequest] = []
        self.closed = False

    async def open(self, request: GenerationRequest) -> Reply:
        self.requests.append(request)
        return Reply(status=self._status, events=self._replay(), headers=self._headers, streamed=request.stream)

    async def _replay(self) -> AsyncIterator[Event]:
        try:
            for event in self._events:
                if isinstance(event, Exception):
                    raise event
                yield event
        finally:
            self.closed = True

    async def ready(self) -> str | None:
        return None


async def _ask(remote: _Remote, **fields: object) -> httpx.Response:
    app = make_app(remote, ServerConfig())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        return await client.post("/v1/chat/completions", json={**HELLO, **fields})


async def test_raw_bytes_pass_untouched():
    odd = b'{"choices":  [],"x":1.50}'
    assert (await _ask(_Remote(Event(raw=odd)))).content == odd
    streamed = await _ask(_Remote(Event(raw=odd), DONE), stream=True)
    assert streamed.content == b"data: " + odd + b"\n\ndata: [DONE]\n\n"


async def test_status_and_headers_of_the_reply_are_kept():
    remote = _Remote(Event(raw=b"{}"), status=207, headers={"X-Cache": "hit", "Content-Type": "text/html"})
    answer = await _ask(remote)
    assert (answer.status_code, answer.headers["x-cache"]) == (207, "hit")
    assert answer.headers.get_list("content-type") == ["application/json"]


async def test_the_request_has_its_raw_bytes_and_its_id():
    remote = _Remote(Event(raw=b"{}"))
    answer = await _ask(remote, user="u")
    (request,) = remote.requests
    assert json.loads(request.raw) == {**HELLO, "user": "u"}
    assert (request.user, request.request_id) == ("u", answer.headers["x-request-id"])


@pytest.mark.parametrize(
    ("error", "code"), [(EngineDied("it is gone"), "engine_died"), (ValueError("secret"), "internal_error")]
)
async def test_trouble_in_a_stream_is_one_error_event(error, code):
    remote = _Remote(Event(raw=b"{}"), error)
    events = (await _ask(remote, stream=True)).text.split("\n\n")
    assert events[0] == "data: {}"
    assert json.loads(events[1].removeprefix("data: "))["error"]["code"] == code
    assert events[2:] == ["data: [DONE]", ""]
    assert "secret" not in events[1]
    assert remote.closed


async def test_trouble_before_a_whole_answer_is_a_status():
    answer = await _ask(_Remote(EngineDied("it is gone")))
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_died")


async def test_a_stream_without_an_end_marker_gets_one_and_nothing_follows_it():
    assert (await _ask(_Remote(Event(raw=b"{}")), stream=True)).text == "data: {}\n\ndata: [DONE]\n\n"
    late = await _ask(_Remote(DONE, Event(raw=b"{}")), stream=True)
    assert late.text == "data: [DONE]\n\n"


def test_frames_survive_every_line_splitter():
    text = "a\x85b\u2028c\u2029d\n"
    raw = Event(payload={"text": text}).raw
    frame = sse.frame(raw).decode()
    assert frame.endswith("\n\n")
    assert len(frame[:-2].splitlines()) == 1
    assert json.loads(frame.removeprefix("data: ")) == {"text": text}


def test_pretty_printed_json_is_one_line():
    assert sse.frame(b'{\r\n  "a": 1\n}') == b'data: {    "a": 1 }\n\n'

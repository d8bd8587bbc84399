"""Every error that a caller can get, under the name that Anthropic gives it, before a stream and within one."""

from __future__ import annotations

import json

import pytest

from tests.support.scripted_engine import Fault, Step
from tidemill.core import errors
from tidemill.core.config import ServerConfig
from tidemill.core.errors import SetupError, TidemillError
from tidemill.serve.anthropic_dialect import AnthropicDialect
from tidemill.serve.anthropic_errors import anthropic_error

HI = [{"role": "user", "content": "Hi"}]
BODY = {"model": "toy", "max_tokens": 5, "messages": HI, "stream": True}

# https://platform.claude.com/docs/en/api/errors; what it does not list of 4xx is an invalid_request_error.
DOCUMENTED = {
    "internal_error": "api_error",
    "invalid_value": "invalid_request_error",
    "context_length_exceeded": "invalid_request_error",
    "unsupported_parameter": "invalid_request_error",
    "template_rejected": "invalid_request_error",
    "quarantined": "invalid_request_error",
    "invalid_api_key": "authentication_error",
    "forbidden": "permission_error",
    "not_found": "not_found_error",
    "model_not_found": "not_found_error",
    "method_not_allowed": "invalid_request_error",
    "request_timeout": "invalid_request_error",
    "payload_too_large": "request_too_large",
    "unsupported_media_type": "invalid_request_error",
    "rate_limit_exceeded": "rate_limit_error",
    "overloaded": "overloaded_error",
    "deadline_unreachable": "overloaded_error",
    "deadline_exceeded": "timeout_error",
    "unavailable": "overloaded_error",
    "engine_died": "overloaded_error",
    "draining": "overloaded_error",
}
OUTSIDE = [
    error
    for error in vars(errors).values()
    if isinstance(error, type) and issubclass(error, TidemillError) and not issubclass(error, SetupError)
]


def test_every_error_has_its_documented_name():
    assert {kind.code: anthropic_error(kind("x"))["error"]["type"] for kind in OUTSIDE} == DOCUMENTED


@pytest.mark.parametrize("kind", OUTSIDE, ids=lambda kind: kind.__name__)
def test_an_error_that_was_made_a_body_is_itself_again(kind):
    again = TidemillError.of_body(kind("why", param="field").body())
    assert (type(again), again.message, again.param) == (kind, "why", "field")


@pytest.mark.parametrize("body", [{"error": {"code": "other", "message": "x"}}, {"error": "x"}, {}])
def test_a_body_of_somebody_elses_is_our_plain_error(body):
    assert type(TidemillError.of_body(body)) is TidemillError


def last_event(answer):
    name, data = answer.text.strip().split("\n\n")[-1].split("\n")
    return name, json.loads(data.removeprefix("data: "))


@pytest.mark.parametrize("kind", OUTSIDE, ids=lambda kind: kind.__name__)
async def test_within_a_stream(http, kind):
    async with http([111, Fault(raises=kind("why"))]) as served:
        answer = await served.client.post("/v1/messages", json=BODY)
    expected = {"type": "error", "error": {"type": DOCUMENTED[kind.code], "message": "why"}}
    assert last_event(answer) == ("event: error", expected)
    assert answer.text.count("event: error") == 1


async def test_what_the_server_itself_ends_a_stream_with(serve):
    async with (
        serve([111, Step(tokens=(112,), delay=60)]) as served,
        served.client.stream("POST", "/v1/messages", json=BODY) as answer,
    ):
        lines = [line async for line in _cut_after_the_first(answer, served.drain)]
    assert json.loads(lines[-1].removeprefix("data: "))["error"]["type"] == "overloaded_error"
    assert b'"timeout_error"' in AnthropicDialect().broken(errors.DeadlineExceeded("late"))


async def _cut_after_the_first(answer, drain):
    async for line in answer.aiter_lines():
        drain.cut()
        if line:
            yield line


async def test_before_a_stream(http):
    async with http([111], max_requests=0, config=ServerConfig(api_keys=("k",), max_body_bytes=2000)) as served:
        post = served.client.post
        key = {"x-api-key": "k"}
        full = await post("/v1/messages", json=BODY, headers=key)
        none = await post("/v1/messages", json=BODY)
        large = await post("/v1/messages", json=BODY | {"system": "x" * 3000}, headers=key)
        media = await post("/v1/messages", content="{}", headers=key | {"content-type": "text/plain"})
        model = await post("/v1/messages", json=BODY | {"model": "other"}, headers=key)
        served.engine.die()
        dead = await post("/v1/messages", json=BODY, headers=key)
    said = [(answer.status_code, answer.json()["error"]["type"]) for answer in (full, none, large, media, model, dead)]
    assert said == [
        (429, "overloaded_error"),
        (401, "authentication_error"),
        (413, "request_too_large"),
        (415, "invalid_request_error"),
        (404, "not_found_error"),
        (503, "overloaded_error"),
    ]

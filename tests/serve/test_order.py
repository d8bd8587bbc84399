"""What a request says of its place in the queue: honoured, or refused by name; and who it comes from."""

from __future__ import annotations

import pytest

from tests.support.scripted_engine import Fault
from tidemill.core.config import ServerConfig
from tidemill.core.errors import DeadlineUnreachable
from tidemill.serve.access.key_file import KeyFile, new_key

MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize("route", ["chat", "complete"])
@pytest.mark.parametrize(
    ("order", "field", "value"),
    [
        ((), "priority", 1),
        (("fair", "srf"), "priority", -1),
        ((), "expected_output_tokens", 5),
        (("priority",), "expected_output_tokens", 5),
    ],
)
async def test_a_field_that_the_order_does_not_look_at_is_refused_by_name(http, route, order, field, value):
    async with http(list(b"ok"), order=order) as served:
        answer = await getattr(served, route)(**{field: value})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "unsupported_parameter", field)
    assert (",".join(order) or "fcfs") in error["message"]
    assert served.engine.requests == []


@pytest.mark.parametrize("route", ["chat", "complete"])
async def test_what_asks_for_nothing_is_taken_by_every_order(http, route):
    async with http(list(b"ok")) as served:
        assert (await getattr(served, route)(priority=0)).status_code == 200
        assert (await getattr(served, route)(priority=None, expected_output_tokens=None)).status_code == 200


@pytest.mark.parametrize("route", ["chat", "complete"])
async def test_what_the_order_looks_at_reaches_the_engine(http, route):
    async with http(list(b"ok"), order=("priority", "srf")) as served:
        assert (await getattr(served, route)(priority=-3, expected_output_tokens=7)).status_code == 200
        (request,) = served.engine.requests
    assert (request.priority, request.expected_tokens, request.tenant, request.weight) == (-3, 7, "", 1.0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("priority", 101),
        ("priority", -101),
        ("priority", "high"),
        ("priority", 1.5),
        ("priority", True),
        ("expected_output_tokens", 0),
        ("expected_output_tokens", 2**31),
        ("expected_output_tokens", "many"),
    ],
)
async def test_values_that_are_none_are_refused_by_name(http, field, value):
    async with http(list(b"ok"), order=("priority", "srf")) as served:
        answer = await served.chat(**{field: value})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)


async def test_the_tenant_and_its_weight_are_the_keys_and_nothing_that_a_body_says(http, tmp_path):
    path = tmp_path / "keys.jsonl"
    key, record = new_key("alice", tenant="lab", weight=2.5)
    KeyFile(path).add(record)
    async with http(list(b"ok"), order=("fair",), config=ServerConfig(keys_file=str(path))) as served:
        served.client.headers["Authorization"] = f"Bearer {key}"
        assert (await served.chat(user="somebody else")).status_code == 200
        assert (await served.complete()).status_code == 200
        for route, body in (("responses", {"input": "Hi"}), ("messages", {"max_tokens": 5, "messages": MESSAGES})):
            answer = await served.client.post(f"/v1/{route}", json={"model": "toy", **body})
            assert answer.status_code == 200, answer.text
        assert len(served.engine.requests) == 4
        for field in ("tenant", "weight"):
            assert (await served.chat(**{field: "x"})).json()["error"]["param"] == field
    assert {(one.tenant, one.weight) for one in served.engine.requests} == {("tenant:lab", 2.5)}


@pytest.mark.parametrize(
    ("fields", "least"),
    [
        ({"stream": True, "max_tokens": 9, "ignore_eos": True}, 1),
        ({"max_tokens": 9, "ignore_eos": True}, 9),
        ({"max_tokens": 9, "ignore_eos": True, "stop": "x"}, 1),
        ({"max_tokens": 9}, 1),
        ({"max_tokens": 9, "min_tokens": 4}, 4),
        ({"max_tokens": 9, "expected_output_tokens": 6}, 6),
        ({"max_tokens": 9, "expected_output_tokens": 60}, 9),
    ],
)
async def test_the_engine_knows_the_time_that_is_left_and_what_has_to_be_there_by_then(http, fields, least):
    async with http(list(b"okokokokok"), order=("deadline",)) as served:
        answer = await served.client.post(
            "/v1/completions", json={"prompt": "Hi", "timeout": 30, **fields}, headers={"X-Request-Timeout": "20"}
        )
        assert answer.status_code == 200, answer.text
        (request,) = served.engine.requests
    assert 0 < request.timeout <= 20
    assert request.least_tokens == least


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_cannot_make_its_deadline_is_told_early_with_503(http, stream):
    async with http([Fault(raises=DeadlineUnreachable("too late", param="timeout"))], order=("deadline",)) as served:
        answer = await served.chat(timeout=5, stream=stream)
    text = answer.text
    assert "deadline_unreachable" in text
    if not stream:
        assert (answer.status_code, answer.json()["error"]["param"]) == (503, "timeout")
        assert "retry-after" in answer.headers

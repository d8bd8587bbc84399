"""Which requests are the same one, and which are none for the cache."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tidemill.gateway.cache.wish import Wish, wish_of

CHAT = "/v1/chat/completions"
BASE: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why tides?"}],
    "temperature": 0,
}


def wish(
    change: dict[str, Any] | None = None,
    *,
    path: str = CHAT,
    tenant: str = "t",
    sampled: bool = False,
    headers: dict[str, str] | None = None,
    key_headers: tuple[str, ...] = (),
) -> Wish | None:
    body = json.dumps({**BASE, **(change or {})}).encode()
    return wish_of(path, body, headers or {}, tenant, sampled=sampled, key_headers=key_headers)


def digest(*args: Any, **named: Any) -> bytes:
    found = wish(*args, **named)
    assert found is not None
    return found.digest


@pytest.mark.parametrize(
    "change",
    [
        {"model": "other"},
        {"messages": [{"role": "system", "content": "Be long."}, BASE["messages"][1]]},
        {"messages": BASE["messages"][::-1]},
        {"tools": [{"type": "function", "function": {"name": "look"}}]},
        {"tool_choice": "none"},
        {"response_format": {"type": "json_object"}},
        {"n": 2},
        {"max_tokens": 5},
        {"max_completion_tokens": 5},
        {"temperature": 1, "seed": 3},
        {"top_p": 0.5},
        {"stop": ["\n"]},
        {"logprobs": True},
        {"user": "somebody"},
        {"cache_salt": "x"},
        {"a_field_that_nobody_knows": 1},
        {"stream": True, "stream_options": {"continuous_usage_stats": True}},
    ],
    ids="-".join,
)
def test_whatever_differs_is_another_request(change: dict[str, Any]) -> None:
    assert digest(change) != digest()


def test_tenants_and_routes_are_apart() -> None:
    assert digest(tenant="a") != digest(tenant="b")
    assert digest(path="/v1/completions") != digest()


def test_what_changes_the_wire_alone_is_the_same_request() -> None:
    ways = {"whole": {}, "stream": {"stream": True}, "stream+usage": {"stream_options": {"include_usage": True}}}
    ways["stream+usage"]["stream"] = True
    found = {mode: wish(change) for mode, change in ways.items()}
    assert {mode: one and one.mode for mode, one in found.items()} == {mode: mode for mode in ways}
    assert {one and one.digest for one in found.values()} == {digest()}
    assert digest({"prompt_cache_key": "k", "stream": False}) == digest()
    backwards = json.dumps(dict(reversed(BASE.items())), indent=3).encode()
    again = wish_of(CHAT, backwards, {}, "t", sampled=False)
    assert again is not None
    assert again.digest == digest(), "the order of names and blanks do not count"


def test_what_may_differ_each_time_is_kept_on_demand_alone() -> None:
    for drawn in ({"temperature": 0.7}, {"temperature": None}, {"temperature": True}, {"temperature": "0"}):
        assert wish(drawn) is None
        assert wish(drawn, sampled=True) is not None
    assert wish({"temperature": 0.7, "seed": 7}) is not None
    assert digest({"temperature": 0.7, "seed": 7}) != digest({"temperature": 0.7, "seed": 8})
    assert wish({"temperature": 0.7, "seed": True}) is None
    assert wish({"temperature": None, "input": "x"}, path="/v1/embeddings") is not None


@pytest.mark.parametrize(
    "change",
    [{"model": ""}, {"model": None}, {"store": True}, {"stream": "yes"}, {"stream": True, "stream_options": 3}],
    ids=str,
)
def test_what_is_a_replicas_to_judge_is_none_for_the_cache(change: dict[str, Any]) -> None:
    assert wish(change) is None


def test_what_is_not_json_and_other_routes_are_none_for_the_cache() -> None:
    assert wish(path="/v1/responses") is None
    assert wish(path="/v1/messages") is None
    for body in (b"{", b"[]", b'{"model": NaN}', b"\xff", b'{"a":' * 100_000):
        assert wish_of(CHAT, body, {}, "t", sampled=True) is None


def test_callers_may_want_none_that_is_old_or_none_that_is_kept() -> None:
    assert wish(headers={"cache-control": "max-age=0, no-store"}) is None
    fresh = wish(headers={"cache-control": "No-Cache"})
    assert fresh is not None
    assert fresh.fresh
    assert fresh.digest == digest()


def test_headers_count_where_the_settings_say_so() -> None:
    named = {"key_headers": ("X-Team",)}
    teams = [digest(headers={"x-team": team}, **named) for team in ("tide", "mill")]
    assert len({*teams, digest(**named)}) == 3
    assert digest(headers={"x-team": "tide"}) == digest()

"""The field ``strategies``: what one request goes without."""

from __future__ import annotations

import pytest

from tests.support.api_clients import BODIES


def ask(served, route, strategies):
    return served.client.post(route, json={"model": "toy", "strategies": strategies, **BODIES[route]})


@pytest.mark.parametrize("route", BODIES)
@pytest.mark.parametrize(
    ("strategies", "without"),
    [
        (None, ()),
        ({}, ()),
        ({"jump-ahead": "on"}, ()),
        ({"prefix-cache": "off"}, ("prefix-cache",)),
        ({"jump-ahead": "off", "prefix-cache": "off"}, ("jump-ahead", "prefix-cache")),
    ],
)
async def test_what_a_request_goes_without_reaches_the_engine(http, route, strategies, without):
    async with http(list(b"ok")) as served:
        answer = await ask(served, route, strategies)
        assert answer.status_code == 200, answer.text
        assert served.engine.requests[0].without == without


@pytest.mark.parametrize("route", BODIES)
@pytest.mark.parametrize(
    ("strategies", "param", "said"),
    [
        ([], "strategies", "must be an object"),
        ({"prefix_cache": "off"}, "strategies.prefix_cache", "did you mean 'prefix-cache'?"),
        ({"jump-ahaed": "off"}, "strategies.jump-ahaed", "did you mean 'jump-ahead'?"),
        (
            {"warp": "on"},
            "strategies.warp",
            "a request chooses prefix-cache, jump-ahead, ",
        ),
        ({"prefix-cache": "of"}, "strategies.prefix-cache", "did you mean 'off'?"),
        ({"prefix-cache": False}, "strategies.prefix-cache", "must be 'on' or 'off', not 'False'"),
        ({"prefix-cache": None}, "strategies.prefix-cache", "must be 'on' or 'off'"),
        ({"paged-kv": "off"}, "strategies.paged-kv", "when the server starts (setting kv_reservation)"),
        ({"prefix-cache": "on"}, "strategies.prefix-cache", "is off here"),
    ],
)
async def test_what_is_unknown_or_not_to_be_had_is_refused_by_its_name(http, route, strategies, param, said):
    async with http([]) as served:
        answer = await ask(served, route, strategies)
    error = answer.json()["error"]
    assert answer.status_code == 400, error
    assert error["message"].startswith(param) or repr(param.partition(".")[2]) in error["message"], error
    assert error.get("param", param) == param  # Anthropic's errors have no such field
    assert said in error["message"]
    assert served.engine.requests == []

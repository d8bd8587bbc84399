"""Web pages of other origins: those in allowed_origins may, and a browser is told so; nobody else."""

from __future__ import annotations

import pytest

from tidemill.core.config import ServerConfig
from tidemill.core.errors import ConfigError
from tidemill.serve.listener import check_config

CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "Hi"}]}
PAGE = "https://tide.example"
CONFIG = ServerConfig(allowed_origins=(PAGE,), api_keys=("k",))
ASK = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,x-stainless-os"}


@pytest.mark.parametrize(("origin", "granted"), [(PAGE, True), ("https://evil.example", False), ("null", False)])
async def test_a_browser_is_told_before_it_sends_a_key(http, origin, granted):
    async with http([], config=CONFIG) as served:
        answer = await served.client.options(CHAT, headers={"origin": origin, **ASK})
    assert answer.status_code == (200 if granted else 400)
    assert (answer.headers.get("access-control-allow-origin") == origin) is granted
    if granted:
        assert "x-stainless-os" in answer.headers["access-control-allow-headers"]


@pytest.mark.parametrize("key", ["k", "wrong"])
async def test_answers_and_errors_can_be_read(http, key):
    async with http(list(b"ok"), config=CONFIG) as served:
        headers = {"origin": PAGE, "authorization": f"Bearer {key}"}
        answer = await served.client.post(CHAT, json=HELLO, headers=headers)
        other = await served.client.post(CHAT, json=HELLO, headers={**headers, "origin": "https://evil.example"})
    assert answer.status_code == (200 if key == "k" else 401)
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert "retry-after" in answer.headers["access-control-expose-headers"]
    assert "access-control-allow-credentials" not in answer.headers
    assert "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize("origin", ["tide.example", "https://tide.example/", "https://Tide.example", "https://", "*"])
def test_origins_that_cannot_be(origin):
    with pytest.raises(ConfigError) as caught:
        check_config(ServerConfig(allowed_origins=(origin,)))
    assert caught.value.param == "allowed_origins"


@pytest.mark.parametrize("origin", ["https://tide.example", "http://localhost:3000", "http://[::1]:80", "*"])
def test_origins_that_can_be(origin):
    check_config(ServerConfig(allowed_origins=(origin,), api_keys=("k",)))

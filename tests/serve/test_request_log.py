"""One line of JSON per request, without what was said."""

from __future__ import annotations

import json

from tidemill.core.config import ServerConfig

JSON = {"content-type": "application/json"}


async def test_lines_of_answers_and_refusals(http, capsys):
    async with http(list(b"ok"), config=ServerConfig(log_requests=True, api_keys=("secret",))) as served:
        headers = {"x-request-id": "one", "authorization": "Bearer secret"}
        body = {"messages": [{"role": "user", "content": "tell-nobody"}], "stream": True}
        await served.client.post("/v1/chat/completions", json=body, headers=headers)
        await served.client.get("/v1/other", headers={"x-request-id": "two"})
    written = capsys.readouterr().err
    first, second = map(json.loads, written.splitlines())
    assert first.pop("seconds") >= 0
    assert first.pop("time").endswith("Z")
    assert first.pop("key").startswith("api_keys:")
    assert first.pop("prompt_tokens") > 0
    said = {"id": "one", "method": "POST", "route": "/v1/chat/completions", "status": 200, "output_tokens": 3}
    assert first == said
    assert (second["id"], second["route"], second["status"], "key" in second) == ("two", "other", 401, False)
    assert "secret" not in written
    assert "tell-nobody" not in written


async def test_none_unless_asked_for(http, capsys):
    async with http(list(b"ok")) as served:
        await served.chat()
    assert capsys.readouterr().err == ""


async def test_bodies_only_for_who_asks_for_prompts_and_never_the_answer(http, capsys):
    async with http(list(b"zq"), config=ServerConfig(log_prompts=True)) as served:
        await served.chat(max_tokens=3)
        await served.client.post("/v1/completions", content=b"\xff" + b"x" * 100_000, headers=JSON)
        await served.client.get("/health")
    first, second, third = map(json.loads, capsys.readouterr().err.splitlines())
    assert json.loads(first["body"])["messages"] == [{"role": "user", "content": "Hi"}]
    assert "zq" not in first["body"]
    assert second["body"] == "\ufffd" + "x" * (65536 - 1)
    assert "body" not in third

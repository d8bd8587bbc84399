"""Keys of a file at the door: who they are, what they may do and how much, and changes while the server runs."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tests.support.scripted_engine import Fault
from tidemill.core.config import ServerConfig
from tidemill.core.embedding import Embedding
from tidemill.serve.access.key_file import KeyFile, new_key

CHAT = "/v1/chat/completions"
HELLO = {"model": "toy", "messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture
def file(tmp_path):
    file = KeyFile(tmp_path / "keys.jsonl")
    file.path.write_text("")
    return file


def make(file: KeyFile, name: str = "alice", **fields: object) -> dict[str, str]:
    """A new key's header."""
    key, record = new_key(name, **fields)
    file.add(record)
    return {"authorization": f"Bearer {key}"}


def config(file: KeyFile, **fields: object) -> ServerConfig:
    return ServerConfig(keys_file=str(file.path), **fields)  # type: ignore[arg-type]


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


# ---- who


async def test_keys_of_the_file_beside_those_of_the_settings(http, file):
    alice = make(file)
    async with http(list(b"ok"), config=config(file, api_keys=("plain",))) as served:
        for headers in (alice, {"authorization": "Bearer plain"}):
            assert (await served.client.post(CHAT, json=HELLO, headers=headers)).status_code == 200
        wrong = alice["authorization"][:-1] + ("a" if alice["authorization"][-1] != "a" else "b")
        for header in (None, wrong, "Bearer tm-", "Bearer tm--", "Bearer \xff"):
            sent = {} if header is None else {"authorization": header.encode("latin-1")}
            assert code(await served.client.post(CHAT, json=HELLO, headers=sent)) == (401, "invalid_api_key")


async def test_an_empty_file_lets_nobody_in(http, file):
    async with http(list(b"ok"), config=config(file)) as served:
        assert code(await served.chat()) == (401, "invalid_api_key")


async def test_tenants_share_and_others_do_not(http, file):
    keys = [make(file, "a", tenant="lab"), make(file, "b", tenant="lab"), make(file, "c"), make(file, "c")]
    async with http(list(b"ok"), config=config(file)) as served:
        for headers in keys:
            await served.client.post(CHAT, json=HELLO, headers=headers)
        tenants = [request.tenant for request in served.engine.requests]
    assert tenants[0] == tenants[1]
    assert len({*tenants, ""}) == 4


async def test_what_takes_an_administrator(http, file):
    user, admin = make(file), make(file, "root", role="admin")
    async with http([], config=config(file, metrics_role="admin")) as served:
        for method, path in (("GET", "/metrics"), ("GET", "/v1/engine/stats"), ("POST", "/v1/cache/reset?all=true")):
            refused = await served.client.request(method, path, headers=user)
            assert code(refused) == (403, "forbidden")
            assert (await served.client.request(method, path, headers=admin)).status_code == 200
        assert (await served.client.post("/v1/cache/reset", headers=user)).status_code == 200
        assert code(await served.client.post("/v1/cache/reset?all=yes", headers=admin)) == (400, "invalid_value")
        assert code(await served.client.post("/v1/cache/reset?al=true", headers=admin)) == (400, "invalid_value")
    assert served.engine.reset_tenants[0] is None
    assert served.engine.reset_tenants[1].startswith("key:")


async def test_metrics_are_everybodys_unless_set(http, file):
    user = make(file)
    async with http([], config=config(file)) as served:
        assert (await served.client.get("/metrics", headers=user)).status_code == 200


# ---- how much


async def test_requests_per_minute(http, file):
    alice, bob = make(file, requests_per_minute=2), make(file, "bob", requests_per_minute=2)
    async with http(list(b"ok"), config=config(file)) as served:
        answers = [await served.client.post(CHAT, json=HELLO, headers=alice) for _ in range(3)]
        assert (await served.client.get("/v1/models", headers=alice)).status_code == 200
        assert (await served.client.post(CHAT, json=HELLO, headers=bob)).status_code == 200
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert code(answers[2]) == (429, "rate_limit_exceeded")
    assert 29 <= int(answers[2].headers["retry-after"]) <= 30  # one more after half a minute


async def test_requests_at_once(serve, file):
    alice = make(file, concurrent_requests=1)
    async with serve(list(b"ok"), config=config(file)) as served:
        served.engine.open.clear()
        first = asyncio.create_task(served.client.post(CHAT, json=HELLO, headers=alice))
        await served.engine.until(lambda: served.engine.requests)
        assert code(await served.client.post(CHAT, json=HELLO, headers=alice)) == (429, "rate_limit_exceeded")
        served.engine.open.set()
        assert (await first).status_code == 200
        assert (await served.client.post(CHAT, json=HELLO, headers=alice)).status_code == 200


async def test_a_hang_up_ends_the_request_that_is_counted(serve, file):
    alice = make(file, concurrent_requests=1)
    async with serve(list(b"ok"), config=config(file)) as served:
        served.engine.open.clear()
        first = asyncio.create_task(served.client.post(CHAT, json=HELLO, headers=alice))
        await served.engine.until(lambda: served.engine.requests)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await served.engine.until(lambda: not served.engine.open_streams)
        served.engine.open.set()
        assert (await served.client.post(CHAT, json=HELLO, headers=alice)).status_code == 200


PROMPT = [65] * 10
"""Ten tokens, however the text rules may be."""


async def test_tokens_that_were_not_used_are_given_back(http, file):
    """Of 100 per minute 10 + 80 are set aside and 10 + 3 used (the end token counts): 10 + 77 fit, 10 + 80 do not."""
    alice = make(file, tokens_per_minute=100)

    async def complete(served, max_tokens):
        body = {"prompt": PROMPT, "max_tokens": max_tokens}
        return await served.client.post("/v1/completions", json=body, headers=alice)

    for second, status in ((77, 200), (80, 429)):
        async with http(list(b"ok"), config=config(file)) as served:
            first = await complete(served, 80)
            assert first.json()["usage"]["total_tokens"] == 13
            answer = await complete(served, second)
            assert answer.status_code == status
    assert code(answer) == (429, "rate_limit_exceeded")
    assert int(answer.headers["retry-after"]) == 2  # 3 tokens at 100 per minute


async def test_what_is_set_aside_counts_while_it_runs(serve, file):
    alice = make(file, tokens_per_minute=100)
    async with serve(list(b"ok"), config=config(file)) as served:
        served.engine.open.clear()
        body = {"prompt": PROMPT, "max_tokens": 60}
        first = asyncio.create_task(served.client.post("/v1/completions", json=body, headers=alice))
        await served.engine.until(lambda: served.engine.requests)
        second = await served.client.post("/v1/completions", json=body, headers=alice)
        served.engine.open.set()
        assert code(second) == (429, "rate_limit_exceeded")
        assert (await first).status_code == 200
        assert (await served.client.post("/v1/completions", json=body, headers=alice)).status_code == 200


@pytest.mark.parametrize("script", [[Fault(raises=RuntimeError("no"))], [Fault(error="no")]], ids=["raises", "error"])
async def test_what_fails_before_its_first_token_costs_nothing(http, file, script):
    alice = make(file, tokens_per_minute=20)
    async with http(script, config=config(file)) as served:
        for _ in range(3):
            body = {"prompt": PROMPT, "max_tokens": 9}
            answer = await served.client.post("/v1/completions", json=body, headers=alice)
            assert answer.status_code == 500


async def test_what_could_never_be_paid_is_told_so(http, file):
    alice = make(file, tokens_per_minute=20)
    async with http(list(b"ok"), config=config(file)) as served:
        answers = [
            await served.client.post("/v1/completions", json=body, headers=alice)
            for body in (
                {"prompt": PROMPT, "max_tokens": 11},
                {"prompt": PROMPT * 2},
                {"prompt": PROMPT, "n": 3, "max_tokens": 4},
            )
        ]
    assert [code(answer) for answer in answers] == [(400, "invalid_value")] * 3
    assert [answer.json()["error"]["param"] for answer in answers] == ["max_tokens", "prompt", "max_tokens"]


async def test_without_max_tokens_an_answer_may_use_what_there_is(http, file):
    alice = make(file, tokens_per_minute=1000)
    async with http(list(b"ok"), config=config(file)) as served:  # the room left is larger
        assert (await served.client.post(CHAT, json=HELLO, headers=alice)).status_code == 200
        assert (await served.client.post(CHAT, json=HELLO, headers=alice)).status_code == 429


async def test_an_answer_longer_than_a_minutes_worth_is_owed(http, file):
    alice = make(file, tokens_per_minute=20)
    async with http(list(b"0123456789" * 9), config=config(file)) as served:
        body = {"messages": [{"role": "user", "content": ""}], "stream": True}
        answer = await served.client.post(CHAT, json=body, headers=alice)
        assert answer.text.count('"content":"9"') == 9
        refused = await served.client.post(CHAT, json={**body, "max_tokens": 1}, headers=alice)
    assert code(refused) == (429, "rate_limit_exceeded")
    assert int(refused.headers["retry-after"]) > 240  # 90 tokens and the prompt, at 20 per minute


async def test_tokens_of_embeddings(http, file):
    alice = make(file, tokens_per_minute=25)
    async with http([], config=config(file), embedding=Embedding(pooling="mean", normalize=True, width=4)) as served:
        statuses = [
            (await served.client.post("/v1/embeddings", json={"input": PROMPT}, headers=alice)).status_code
            for _ in range(3)
        ]
    assert statuses == [200, 200, 429]


# ---- changes


async def test_a_new_key_counts_at_once_and_a_revoked_one_ends_at_its_next_request(serve, file):
    alice = make(file)
    streamed = {**HELLO, "stream": True}
    async with (
        serve(list(b"0123456789"), step_delay=0.01, config=config(file)) as served,
        served.client.stream("POST", CHAT, json=streamed, headers=alice) as stream,
    ):
        lines = stream.aiter_lines()
        await anext(lines)
        assert file.remove("alice")
        bob = make(file, "bob")
        assert code(await served.client.post(CHAT, json=HELLO, headers=alice)) == (401, "invalid_api_key")
        assert (await served.client.post(CHAT, json=HELLO, headers=bob)).status_code == 200
        rest = "".join([line async for line in lines])
    assert '"content":"9"' in rest
    assert rest.endswith("data: [DONE]")
    assert "error" not in rest


async def test_a_changed_limit_keeps_what_was_used(http, file):
    key, record = new_key("alice", requests_per_minute=2)
    file.add(record)
    alice = {"authorization": f"Bearer {key}"}
    async with http(list(b"ok"), config=config(file)) as served:

        async def statuses(count):
            return [(await served.client.post(CHAT, json=HELLO, headers=alice)).status_code for _ in range(count)]

        assert await statuses(3) == [200, 200, 429]
        file.path.write_text(file.path.read_text().replace('"requests_per_minute": 2', '"requests_per_minute": 3'))
        assert await statuses(2) == [200, 429]
        file.path.write_text(file.path.read_text().replace(', "requests_per_minute": 3', ""))
        assert await statuses(5) == [200] * 5


async def test_a_broken_file_changes_nothing(http, file, caplog):
    alice = make(file)
    async with http(list(b"ok"), config=config(file)) as served:
        file.path.write_text("{")
        assert (await served.client.post(CHAT, json=HELLO, headers=alice)).status_code == 200
        file.path.unlink()
        assert (await served.client.post(CHAT, json=HELLO, headers=alice)).status_code == 200
        assert (await served.client.post(CHAT, json=HELLO)).status_code == 401
    assert [record.message.count("the keys are as they were") for record in caplog.records] == [1, 1]

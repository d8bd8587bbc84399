"""Conversations in every odd order under templates that are strict, tolerant, broken or missing: an answer, or 400 with
the reason in one line, whole and streamed, in each API. Never a 5xx."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from tests.support.scripted_engine import ScriptedEngine
from tests.text.test_turns import STRICT, TOLERANT
from tests.text.tiny_text import gguf_vocabulary
from tidemill.core.config import ServerConfig
from tidemill.core.tokens import EngineInfo
from tidemill.frontend.backend import LocalBackend
from tidemill.frontend.model_text import ModelText
from tidemill.serve.app import make_app
from tidemill.text.source import TextSource

FAILING = "{% for m in messages %}{{ m.content.no.such.thing }}{% endfor %}"
TEMPLATES = {"strict": STRICT, "tolerant": TOLERANT, "failing": FAILING, "missing": None}
CALLS = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]


def said(role: Any, content: Any = "x", **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


ROLES = ("system", "developer", "user", "assistant", "tool")
ORDERS = [
    [],
    *([said(role)] for role in ROLES),
    *([said(first), said(second)] for first, second in itertools.product(ROLES, ROLES)),
    [said("user"), said("system"), said("user")],
    [said("user"), said("assistant", None, tool_calls=CALLS), said("tool", tool_call_id="c")],
    [said("user"), said("assistant", None, tool_calls=CALLS), said("user")],
    [said("user"), said("assistant", None)],
    [said("user", "")],
    [said("user", [])],
    [said("user", [{"type": "text", "text": ""}])],
    [said("narrator")],
    [said(7)],
    [said("")],
]
NAMES = ["-".join(str(message["role"]) or "empty" for message in order) or "none" for order in ORDERS]


@asynccontextmanager
async def client_of(template: str | None) -> AsyncIterator[httpx.AsyncClient]:
    """Of a server whose model has this template, and says nothing."""
    templates = {} if template is None else {"default": template}
    text = ModelText.from_source(TextSource(gguf=gguf_vocabulary(), chat_templates=templates, where="tiny.gguf"))
    info = EngineInfo(
        model="toy", vocab_size=len(gguf_vocabulary().tokens), max_model_len=500, kv_capacity_tokens=500,
        end_token_ids=(2,), executor="scripted",
    )  # fmt: skip
    app = make_app(LocalBackend(ScriptedEngine([], info=info), text), ServerConfig())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        yield client


@pytest.mark.parametrize("order", ORDERS, ids=NAMES)
@pytest.mark.parametrize("template", TEMPLATES)
async def test_an_answer_or_the_reason(template, order):
    async with client_of(TEMPLATES[template]) as client:
        statuses = {}
        for path, body in (
            ("/v1/chat/completions", {"messages": order}),
            ("/v1/chat/completions", {"messages": order, "stream": True}),
            ("/v1/responses", {"input": order}),
            ("/v1/messages", {"messages": order, "max_tokens": 4}),
            ("/tokenize", {"messages": order}),
            ("/apply-template", {"messages": order}),
        ):
            answer = await client.post(path, json={"model": "toy", **body})
            assert answer.status_code in (200, 400), answer.text
            statuses[path, bool(body.get("stream"))] = answer.status_code
            if answer.status_code == 400:
                message = answer.json()["error"]["message"]
                assert message
                assert "\n" not in message
                assert "Traceback" not in message
    of_chat = {status for (path, _), status in statuses.items() if path in ("/v1/chat/completions", "/apply-template")}
    assert len(of_chat) == 1, statuses
    if template in ("failing", "missing") or not order or order[0]["role"] in ("narrator", 7, ""):
        assert of_chat == {400}
    roles = [message["role"] for message in order]
    if template == "tolerant" and roles and {*roles} <= {"system", "developer", "user"}:
        assert of_chat == {200}
    if template == "strict" and roles and (roles[0] != "user" or roles[1:2] in (["user"], ["system"], ["developer"])):
        assert of_chat == {400}

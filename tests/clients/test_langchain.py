"""The tour by LangChain, with langchain-openai."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import numpy as np
import openai
import pytest

from tests.clients.conftest import EMBEDDER, MAX_BODY, Tour, ended_early, wait_for_one_more
from tests.clients.sea import ANSWERS, FUNCTIONS, HELLO, MILL, WAVES, tide, wind
from tests.e2e.server import Server

langchain_openai = pytest.importorskip("langchain_openai", reason="`make test-clients` installs LangChain")
from langchain_core.messages import HumanMessage, ToolMessage  # noqa: E402
from langchain_core.tools import tool  # noqa: E402
from pydantic import BaseModel  # noqa: E402

pytestmark = pytest.mark.clients


class Sunken(BaseModel):
    """A place under water."""

    place: Literal["Ys", "Avalon"]


def model(url: str, key: str = "none", **fields: Any) -> Any:
    defaults: dict[str, Any] = {"model": "m", "temperature": 0, "max_retries": 0, "stream_usage": True}
    return langchain_openai.ChatOpenAI(base_url=url, api_key=key, **{**defaults, **fields})


def test_chat_and_stream(tour: Tour) -> None:
    answer = model(tour.url, tour.key).invoke(MILL)
    assert answer.content == ANSWERS["mill"][0]
    pieces = list(model(tour.url, tour.key).stream(MILL))
    assert "".join(piece.content for piece in pieces) == answer.content
    assert len(pieces) > 20
    whole = pieces[0]
    for piece in pieces[1:]:
        whole += piece
    assert whole.usage_metadata["output_tokens"] == answer.usage_metadata["output_tokens"]
    assert answer.usage_metadata["output_tokens"] == len(answer.content) + 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("question", "rounds", "last"),
    [
        ("How is the sea in Brest?", [1, 1], ANSWERS["two_rounds"][2]),
        ("Compare Brest and Cardiff.", [2], ANSWERS["side_by_side"][1]),
    ],
)
def test_rounds_of_tools(tour: Tour, stream: bool, question: str, rounds: list[int], last: str) -> None:
    """One call after another, and two at once; nothing is forced."""
    bound = model(tour.url, tour.key).bind_tools([tool(tide), tool(wind)])
    messages: list[Any] = [HumanMessage(question)]
    calls = []
    while True:
        if stream:
            first, *rest = bound.stream(messages)
            for piece in rest:
                first += piece
            said = first
        else:
            said = bound.invoke(messages)
        assert not said.invalid_tool_calls
        if not said.tool_calls:
            break
        calls.append(len(said.tool_calls))
        messages.append(said)
        messages += [
            ToolMessage(FUNCTIONS[call["name"]](**call["args"]), tool_call_id=call["id"]) for call in said.tool_calls
        ]
    assert calls == rounds
    assert said.content == last


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(tour: Tour, method: str) -> None:
    found = model(tour.url, tour.key).with_structured_output(Sunken, method=method).invoke(HELLO)
    assert isinstance(found, Sunken)


def test_embeddings(embedder: Server) -> None:
    expected = np.load(EMBEDDER / "expected.npz")
    found = langchain_openai.OpenAIEmbeddings(
        model="m", base_url=f"{embedder.url}/v1", api_key="none", check_embedding_ctx_length=False
    ).embed_documents([str(text) for text in expected["texts"]])
    np.testing.assert_allclose(found, expected["mean_normalized"], atol=1e-5, rtol=0)


def test_errors(tour: Tour, stopping: Server) -> None:
    with pytest.raises(openai.BadRequestError, match="top_p"):
        model(tour.url, tour.key, top_p=2).invoke(HELLO)
    with pytest.raises(openai.BadRequestError, match="temprature"):
        model(tour.url, tour.key, extra_body={"temprature": 1}).invoke(HELLO)
    with pytest.raises(openai.AuthenticationError):
        model(tour.url, "tm-nobody").invoke(HELLO)
    with pytest.raises(openai.NotFoundError, match="other"):
        model(tour.url, tour.key, model="other").invoke(HELLO)
    with pytest.raises(openai.APIStatusError, match="max_body_bytes"):
        model(tour.url, tour.key).invoke("a" * MAX_BODY)
    with pytest.raises(openai.RateLimitError):
        model(tour.url, tour.frugal).invoke(HELLO)
    with pytest.raises(openai.InternalServerError, match="draining"):
        model(f"{stopping.url}/v1").invoke(HELLO)


async def test_a_stream_that_is_left_ends_the_work(slow: Server) -> None:
    before = ended_early(slow)
    stream = model(f"{slow.url}/v1", max_tokens=1900).astream(WAVES)
    assert await anext(stream)
    await stream.aclose()
    # What is below the stream is closed by the event loop, which has to go on for that.
    await asyncio.to_thread(wait_for_one_more, slow, before)

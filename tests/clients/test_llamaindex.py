"""The tour by LlamaIndex, with its clients for servers that speak OpenAI's API."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import numpy as np
import openai
import pytest

from tests.clients.conftest import EMBEDDER, MAX_BODY, Tour, ended_early, wait_for_one_more
from tests.clients.sea import ANSWERS, HELLO, MILL, WAVES, tide, wind
from tests.e2e.server import Server

like = pytest.importorskip("llama_index.llms.openai_like", reason="`make test-clients` installs LlamaIndex")
from llama_index.core.agent.workflow import FunctionAgent, ToolCallResult  # noqa: E402
from llama_index.core.base.llms.types import ChatMessage  # noqa: E402
from llama_index.core.prompts import PromptTemplate  # noqa: E402
from llama_index.embeddings.openai_like import OpenAILikeEmbedding  # noqa: E402
from pydantic import BaseModel  # noqa: E402

pytestmark = pytest.mark.clients


class Sunken(BaseModel):
    """A place under water."""

    place: Literal["Ys", "Avalon"]


def model(url: str, key: str = "none", **fields: Any) -> Any:
    defaults: dict[str, Any] = {
        "model": "m",
        "temperature": 0,
        "max_retries": 0,
        "context_window": 2048,
        "is_chat_model": True,
        "is_function_calling_model": True,
    }
    return like.OpenAILike(api_base=url, api_key=key, **{**defaults, **fields})


def said(question: str) -> list[ChatMessage]:
    return [ChatMessage(role="user", content=question)]


def test_chat_and_stream(tour: Tour) -> None:
    llm = model(tour.url, tour.key)
    assert llm.chat(said(MILL)).message.content == ANSWERS["mill"][0]
    pieces = list(llm.stream_chat(said(MILL)))
    assert "".join(piece.delta or "" for piece in pieces) == ANSWERS["mill"][0]
    assert len(pieces) > 20


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("question", "called", "last"),
    [
        ("How is the sea in Dover?", ["tide", "wind"], ANSWERS["instructed"][2]),
        ("Compare Brest and Cardiff.", ["tide", "tide"], ANSWERS["side_by_side"][1]),
    ],
)
async def test_an_agent(tour: Tour, streaming: bool, question: str, called: list[str], last: str) -> None:
    """Its loop calls the functions; nothing is forced."""
    agent = FunctionAgent(
        tools=[tide, wind], llm=model(tour.url, tour.key), system_prompt="You know the sea.", streaming=streaming
    )
    run = agent.run(question)
    results = [event async for event in run.stream_events() if isinstance(event, ToolCallResult)]
    assert [result.tool_name for result in results] == called
    assert not any(result.tool_output.is_error for result in results)
    assert str(await run) == last


def test_structured_output(tour: Tour) -> None:
    found = model(tour.url, tour.key, strict=True).structured_predict(Sunken, PromptTemplate(HELLO))
    assert isinstance(found, Sunken)


def test_embeddings(embedder: Server) -> None:
    expected = np.load(EMBEDDER / "expected.npz")
    texts = [str(text) for text in expected["texts"]]
    api = OpenAILikeEmbedding(model_name="m", api_base=f"{embedder.url}/v1", api_key="none")
    found = api.get_text_embedding_batch(texts)
    np.testing.assert_allclose(found, expected["mean_normalized"], atol=1e-5, rtol=0)


def test_errors(tour: Tour, stopping: Server) -> None:
    with pytest.raises(openai.BadRequestError, match="top_p"):
        model(tour.url, tour.key, additional_kwargs={"top_p": 2}).chat(said(HELLO))
    with pytest.raises(openai.BadRequestError, match="temprature"):
        model(tour.url, tour.key, additional_kwargs={"extra_body": {"temprature": 1}}).chat(said(HELLO))
    with pytest.raises(openai.AuthenticationError):
        model(tour.url, "tm-nobody").chat(said(HELLO))
    with pytest.raises(openai.NotFoundError, match="other"):
        model(tour.url, tour.key, model="other").chat(said(HELLO))
    with pytest.raises(openai.APIStatusError, match="max_body_bytes"):
        model(tour.url, tour.key).chat(said("a" * MAX_BODY))
    with pytest.raises(openai.RateLimitError):
        model(tour.url, tour.frugal).chat(said(HELLO))
    with pytest.raises(openai.InternalServerError, match="draining"):
        model(f"{stopping.url}/v1").chat(said(HELLO))


async def test_a_stream_that_is_left_ends_the_work(slow: Server) -> None:
    before = ended_early(slow)
    stream = await model(f"{slow.url}/v1", max_tokens=1900).astream_chat(said(WAVES))
    assert await anext(stream)
    await stream.aclose()
    # What is below the stream is closed by the event loop, which has to go on for that.
    await asyncio.to_thread(wait_for_one_more, slow, before)

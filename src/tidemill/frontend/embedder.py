"""One call for vectors: every text is checked and encoded, then all run in the engine, a window of them at a time.

Cancelling a call ends what still runs of it in the engine.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from tidemill.core.embedding import Embedding
from tidemill.core.errors import InvalidRequest
from tidemill.core.events import Event, Reply
from tidemill.core.metrics import EMBEDDINGS, PROMPT_TOKENS, Recorder
from tidemill.core.protocols import TokenEngine
from tidemill.core.requests import EmbeddingRequest, Prompt
from tidemill.core.tokens import EmbedRequest
from tidemill.engine.admission import check_embeds, check_text, check_tokens
from tidemill.frontend.request_trace import tell_begin
from tidemill.frontend.standing import check_standing
from tidemill.frontend.text import Text
from tidemill.frontend.vectors import check_dimensions, encoded, finished

__all__ = ["MAX_INPUTS", "Embedder", "encode_text"]

MAX_INPUTS: Final = 2048
"""Most texts of one call, as at OpenAI."""
_WINDOW: Final = 128
"""Texts of one call that are in the engine at once: enough to fill its steps, and others find room in its queue."""
_SHORT_TEXT: Final = 2048
"""Characters of all texts up to which encoding is too quick to be worth a thread."""


class Embedder:
    """Answers requests for vectors from an engine of our own."""

    def __init__(self, engine: TokenEngine, text: Text, recorder: Recorder) -> None:
        self._engine = engine
        self._text = text
        self._recorder = recorder

    async def open(self, request: EmbeddingRequest, arrival: float) -> Reply:
        """The answer, complete. Raises InvalidRequest, naming ``input`` or ``input[i]``, and what the engine raises."""
        check_embeds(self._engine.info)
        check_standing(request, self._engine.info)
        embedding = self._engine.info.embedding
        assert embedding is not None
        check_dimensions(request.dimensions, embedding, request.model)
        if len(request.inputs) > MAX_INPUTS:
            raise InvalidRequest(f"input has {len(request.inputs)} texts; at most {MAX_INPUTS}", param="input")
        if request.truncate is not None and request.truncate != -1 and request.truncate < 1:
            raise InvalidRequest("truncate_prompt_tokens must be at least 1, or -1", param="truncate_prompt_tokens")
        size = sum(len(text) for text in request.inputs)
        texts = self._encode(request) if size <= _SHORT_TEXT else await asyncio.to_thread(self._encode, request)
        tokens = sum(map(len, texts))
        tell_begin(request.trace, request)
        request.account.reserve(prompt=tokens, output=0, limit_field=None)
        vectors = await self._vectors(request, texts, arrival)
        request.account.spend(prompt=tokens, output=0)
        request.trace.tell(None, {"gen_ai.usage.input_tokens": tokens})
        self._recorder.add(PROMPT_TOKENS, tokens)
        self._recorder.add(EMBEDDINGS, len(texts))
        event = await asyncio.to_thread(_event, request, embedding, vectors, tokens)
        return Reply(status=200, events=_once(event))

    def _encode(self, request: EmbeddingRequest) -> list[Sequence[int]]:
        """Token ids of every text, each one that the engine takes."""
        encoded_texts: list[Sequence[int]] = []
        for index, text in enumerate(request.inputs):
            place = "input" if len(request.inputs) == 1 else f"input[{index}]"
            try:
                encoded_texts.append(self._checked(text, request.truncate))
            except InvalidRequest as error:
                if error.param == "model":
                    raise
                prefix = "" if place == "input" else f"{place}: "
                raise type(error)(f"{prefix}{error.message}", param=place) from error
        return encoded_texts

    def _checked(self, text: Prompt, truncate: int | None) -> Sequence[int]:
        info = self._engine.info
        ids = encode_text(self._text, text, info.max_model_len if truncate == -1 else truncate)
        check_text(len(ids), info)
        check_tokens(ids, info.vocab_size)
        return ids

    async def _vectors(self, request: EmbeddingRequest, texts: Sequence[Sequence[int]], arrival: float) -> list[bytes]:
        """The pooled vector of each text, in order. The first error ends the others."""
        room = asyncio.Semaphore(_WINDOW)

        async def vector(ids: Sequence[int]) -> bytes:
            async with room:
                name = f"emb-{uuid.uuid4().hex}"
                asked = EmbedRequest(
                    request_id=name,
                    prompt=tuple(ids),
                    arrival=arrival,
                    tenant=request.tenant,
                    weight=request.weight,
                    priority=request.priority,
                    timeout=request.timeout,
                )
                return await self._engine.embed(asked)

        tasks = [asyncio.create_task(vector(ids)) for ids in texts]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def encode_text(text_rules: Text, text: Prompt, limit: int | None = None) -> Sequence[int]:
    """Token ids of a text, cut to ``limit``; what belongs behind a text stays behind what is left of it. Ids are taken
    as they are, and cut at the end. Raises InvalidRequest for a text that is empty."""
    if not text:
        raise InvalidRequest("the text is empty", param="input")
    if not isinstance(text, str):
        return text if limit is None else text[:limit]
    ids = text_rules.encode(text)
    if limit is None or len(ids) <= limit:
        return ids
    ending = text_rules.ending
    if limit <= len(ending):
        return ids[:limit]
    return [*ids[: limit - len(ending)], *ending]


def _event(request: EmbeddingRequest, embedding: Embedding, vectors: Sequence[bytes], tokens: int) -> Event:
    data: list[dict[str, Any]] = [
        {
            "object": "embedding",
            "index": index,
            "embedding": encoded(finished(vector, embedding, request.dimensions), request.encoding),
        }
        for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    payload = {"object": "list", "data": data, "model": request.model, "usage": usage}
    return Event(raw=Event(payload=payload).raw)


async def _once(event: Event) -> AsyncIterator[Event]:
    yield event

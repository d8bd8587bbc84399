"""A Backend that answers by a script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from tidemill.bench.scripted.events import Asked, planned
from tidemill.bench.scripted.script import Script, ScriptedAnswer
from tidemill.core.errors import TidemillError
from tidemill.core.events import DONE, Event, Reply
from tidemill.core.requests import AnyRequest, ChatRequest, CompletionRequest

__all__ = ["ScriptedBackend"]


class ScriptedBackend:
    """Implements Backend. Comments, which are no events, are left out; a cut connection raises ConnectionResetError.
    Times are those of the running event loop."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.requests: list[AnyRequest] = []
        """Every request, in order."""
        self.closed = 0
        """Streams that were closed before their end."""

    @property
    def models(self) -> tuple[str, ...]:
        """The script's name for itself."""
        return (self._script.model,)

    async def ready(self) -> str | None:
        """Always."""
        return None

    async def open(self, request: AnyRequest) -> Reply:
        """The next answer. A status that is not 200 is a reply with an error body."""
        answer = self._script.answers[len(self.requests) % len(self._script.answers)]
        self.requests.append(request)
        await asyncio.sleep(answer.delay)
        if answer.status != 200:
            body = Event(payload=TidemillError(answer.message).body())
            return Reply(status=answer.status, events=_once(body), headers=answer.headers)
        return Reply(status=200, events=self._events(answer, request), headers=answer.headers, streamed=True)

    async def _events(self, answer: ScriptedAnswer, request: AnyRequest) -> AsyncIterator[Event]:
        loop = asyncio.get_running_loop()
        begin, ended = loop.time(), False
        try:
            for item in planned(answer, _asked(request)):
                await asyncio.sleep(max(0.0, begin + item.at - loop.time()))
                step, ended = item.step, item.step.ends
                if step.disconnect:
                    raise ConnectionResetError("the script cuts the connection")
                if item.payload is not None:
                    yield Event(payload=item.payload)
                if step.done:
                    yield DONE
        finally:
            self.closed += not ended


def _asked(request: AnyRequest) -> Asked:
    if not isinstance(request, ChatRequest | CompletionRequest):
        raise TidemillError("the script has no vectors")
    if isinstance(request, ChatRequest):
        text = " ".join(str(message.get("content")) for message in request.messages)
        tokens = len(text.split())
    else:
        tokens = sum(len(p.split()) if isinstance(p, str) else len(p) for p in request.prompts)
    return Asked(
        chat=isinstance(request, ChatRequest),
        model=request.model,
        max_tokens=request.sampling.max_tokens or 16,
        prompt_tokens=tokens,
        include_usage=request.include_usage,
    )


async def _once(event: Event) -> AsyncIterator[Event]:
    yield event

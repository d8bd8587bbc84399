"""Reads a stream along while its bytes pass: where events end, whether anything could be seen yet, how it ended.

What is visible is what cannot be taken back: generated text of any channel, a call, an end. A role, a comment or an
empty delta is not, so that an answer that fails right after one can still come from elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, Literal

import msgspec

from tidemill.core.errors import TidemillError
from tidemill.core.event_stream import EventStreamReader, ServerEvent
from tidemill.core.events import Event
from tidemill.serve.anthropic_errors import anthropic_error
from tidemill.serve.sse import frame, named

__all__ = ["Choice", "Chunk", "Form", "StreamWatch", "error_ending", "form_of"]

Form = Literal["openai", "responses", "anthropic"]
_DONE: Final = b"[DONE]"
_MARKER: Final = b"data: [DONE]\n\n"
_TEXTS: Final = ("content", "reasoning_content", "reasoning", "refusal", "tool_calls", "function_call")


class Choice(msgspec.Struct):
    """One of an event of the OpenAI form."""

    delta: Any = None
    text: Any = None
    finish_reason: Any = None
    index: Any = 0


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: dict[str, Any] | None = None


class Chunk(msgspec.Struct):
    """An event of any form."""

    id: Any = None
    created: Any = None
    choices: list[Choice] | None = None
    usage: _Usage | None = None
    error: Any = None
    object: Any = None
    type: Any = None


_decode: Final = msgspec.json.Decoder(Chunk).decode


def form_of(path: str) -> Form:
    """The form that a route's streams have."""
    if path.startswith("/v1/messages"):
        return "anthropic"
    return "responses" if path.startswith("/v1/responses") else "openai"


def error_ending(error: TidemillError, form: Form) -> bytes:
    """One error event and the end marker, where the form has one."""
    if form == "anthropic":
        return named("error", anthropic_error(error))
    if form == "responses":
        return named("error", {**error.body()["error"], "type": "error"})
    return frame(Event(payload=error.body()).raw) + _MARKER


class StreamWatch:
    """One stream."""

    def __init__(self, form: Form, shown: Callable[[Chunk], None] | None = None) -> None:
        """``shown`` is told the events of an answer, as they may pass."""
        self._form = form
        self._shown = shown
        self._reader = EventStreamReader()
        self._rest = b""
        self._open: set[Any] = set()
        """Choices that have begun and not finished."""
        self._any_finished = False
        self.visible = False
        self.done = False
        """The end marker has come, or the event that is the end in this form."""
        self.error: str | None = None
        self.error_code = ""
        """As the error names itself."""
        self.failure = b""
        """The event that says so and what came with it, as they came. They pass only where nothing can be done."""
        self.events_with_text = 0
        self.usage: _Usage | None = None

    @property
    def complete(self) -> bool:
        """Whether the answer is all there."""
        return self.done or (self._any_finished and not self._open)

    @property
    def output_tokens(self) -> int:
        """As the usage tells; without one, a token for each event that brought text."""
        return self.usage.completion_tokens if self.usage and self.usage.completion_tokens else self.events_with_text

    @property
    def cached_tokens(self) -> int | None:
        """As the usage tells."""
        details = self.usage.prompt_tokens_details if self.usage else None
        found = details.get("cached_tokens") if details else None
        return found if isinstance(found, int) else None

    def feed(self, data: bytes) -> bytes:
        """What may pass: the events that are complete, untouched. The beginning of one waits for its end, and an error
        goes to ``failure``."""
        whole = self._rest + data if self._rest else data
        cut = max(_after(whole, b"\n\n"), _after(whole, b"\r\n\r\n"))
        passed, self._rest = whole[:cut], whole[cut:]
        for event in self._reader.feed(passed):
            self._see(event)
            if self.error is not None:
                at = passed.find(event.data.partition(b"\n")[0])
                begun = max(_after(passed[:at], b"\n\n"), _after(passed[:at], b"\r\n\r\n"))
                self.failure = passed[begun:]
                return passed[:begun]
        return passed

    @property
    def ending(self) -> bytes:
        """What the form wants at the end of a complete answer and the replica did not send."""
        return b"" if self.done or self._form != "openai" else _MARKER

    def _see(self, event: ServerEvent) -> None:
        if event.data == _DONE:
            self.done = True
            return
        try:
            chunk = _decode(event.data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self.visible = True  # nobody knows what a client makes of it
            return
        if chunk.error is not None or chunk.object == "error":  # in any form: engines mix them
            self.error = str(chunk.error)[:500]
            self.error_code = _code(chunk.error)
            return
        _READERS[self._form](self, chunk)

    def _openai(self, chunk: Chunk) -> None:
        if self._shown is not None:
            self._shown(chunk)
        if chunk.usage is not None:
            self.usage = chunk.usage
        for choice in chunk.choices or ():
            if any(_texts(choice)):
                self.visible = True
                self.events_with_text += 1
            if choice.finish_reason:
                self.visible = self._any_finished = True
                self._open.discard(choice.index)
            else:
                self._open.add(choice.index)

    def _responses(self, chunk: Chunk) -> None:
        kind = str(chunk.type)
        if kind in ("error", "response.failed"):
            self.error = kind
        elif kind.endswith(".delta"):
            self.visible = True
            self.events_with_text += 1
        elif kind in ("response.completed", "response.incomplete"):
            self.visible = self.done = True

    def _anthropic(self, chunk: Chunk) -> None:
        match chunk.type:
            case "error":
                self.error = "error"
            case "content_block_delta":
                self.visible = True
                self.events_with_text += 1
            case "message_stop":
                self.visible = self.done = True


_READERS: Final[dict[Form, Callable[[StreamWatch, Chunk], None]]] = {
    "openai": StreamWatch._openai,
    "responses": StreamWatch._responses,
    "anthropic": StreamWatch._anthropic,
}


def _after(data: bytes, mark: bytes) -> int:
    """The place behind the last mark; 0: there is none."""
    at = data.rfind(mark)
    return 0 if at < 0 else at + len(mark)


def _code(error: Any) -> str:
    return str(error.get("code") or error.get("type") or "") if isinstance(error, dict) else ""


def _texts(choice: Choice) -> Iterator[Any]:
    yield choice.text
    if isinstance(choice.delta, dict):
        for name in _TEXTS:
            yield choice.delta.get(name)

"""The items of an answer in the Responses API, and the events in which each of them comes.

    output_item.added | content_part.added | deltas ... | done | content_part.done | output_item.done

A call has no parts. Source: https://platform.openai.com/docs/api-reference/responses-streaming.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

from tidemill.serve.responses_input import packed_reasoning

__all__ = ["Call", "Item", "Reasoning", "Said", "Status", "Text"]

Said = tuple[str, dict[str, Any]]
"""An event's type, and its fields."""
Status = Literal["in_progress", "completed", "incomplete"]


class Item:
    """One item as it grows."""

    prefix: ClassVar[str]
    """Of the item's id."""

    def __init__(self, name: str, index: int) -> None:
        """``name``: of the answer; ``index``: of the item in it."""
        self.id = f"{self.prefix}_{name}_{index}"
        self.index = index
        self._parts: list[str] = []

    @property
    def text(self) -> str:
        """What it says so far."""
        return "".join(self._parts)

    def take(self, text: str, logprobs: Sequence[Mapping[str, Any]] = ()) -> None:
        """Say more. ``logprobs``: of the text's tokens, where they were asked for."""
        del logprobs
        self._parts.append(text)

    def item(self, status: Status) -> dict[str, Any]:
        """As it is now."""
        raise NotImplementedError

    def opening(self) -> Iterator[Said]:
        """The events before its first text."""
        yield "response.output_item.added", {"output_index": self.index, "item": self.item("in_progress")}

    def more(self, text: str, logprobs: Sequence[Mapping[str, Any]] = ()) -> Iterator[Said]:
        """``take``, and the events of it."""
        raise NotImplementedError

    def closing(self, status: Status) -> Iterator[Said]:
        """The events behind its last text."""
        yield "response.output_item.done", {"output_index": self.index, "item": self.item(status)}

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self.id, "output_index": self.index}


class _InParts(Item):
    """An item with one part of text."""

    event: ClassVar[str]

    def part(self) -> dict[str, Any]:
        """The part as it is now."""
        raise NotImplementedError

    def opening(self) -> Iterator[Said]:
        """See Item."""
        yield from super().opening()
        yield "response.content_part.added", {**self._place, "part": self.part()}

    def more(self, text: str, logprobs: Sequence[Mapping[str, Any]] = ()) -> Iterator[Said]:
        """See Item."""
        self.take(text, logprobs)
        yield f"{self.event}.delta", {**self._place, "delta": text, **self._scored(logprobs)}

    def closing(self, status: Status) -> Iterator[Said]:
        """See Item."""
        yield f"{self.event}.done", {**self._place, "text": self.text, **self._scored(self.part().get("logprobs", ()))}
        yield "response.content_part.done", {**self._place, "part": self.part()}
        yield from super().closing(status)

    def _scored(self, logprobs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """What an event says of its text's tokens."""
        del logprobs
        return {}

    def _content(self, status: Status) -> list[dict[str, Any]]:
        return [] if status == "in_progress" else [self.part()]

    @property
    def _place(self) -> dict[str, Any]:
        return {**super()._place, "content_index": 0}


class Text(_InParts):
    """A message of the assistant."""

    prefix = "msg"
    event = "response.output_text"

    def __init__(self, name: str, index: int) -> None:
        super().__init__(name, index)
        self._logprobs: list[Mapping[str, Any]] = []

    def take(self, text: str, logprobs: Sequence[Mapping[str, Any]] = ()) -> None:
        """See Item."""
        super().take(text)
        self._logprobs += logprobs

    def part(self) -> dict[str, Any]:
        """See _InParts."""
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": list(self._logprobs)}

    def item(self, status: Status) -> dict[str, Any]:
        """See Item."""
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": self._content(status),
        }

    def _scored(self, logprobs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {"logprobs": list(logprobs)}


class Reasoning(_InParts):
    """What the model says to itself."""

    prefix = "rs"
    event = "response.reasoning_text"

    def __init__(self, name: str, index: int, *, packed: bool) -> None:
        """``packed``: give it a second time in the form that callers send back."""
        super().__init__(name, index)
        self._packed = packed

    def part(self) -> dict[str, Any]:
        """See _InParts."""
        return {"type": "reasoning_text", "text": self.text}

    def item(self, status: Status) -> dict[str, Any]:
        """See Item."""
        said = {"id": self.id, "type": "reasoning", "summary": [], "content": self._content(status), "status": status}
        if self._packed and status != "in_progress":
            said["encrypted_content"] = packed_reasoning(self.text)
        return said


class Call(Item):
    """A call of a function; its text are the arguments."""

    prefix = "fc"

    def __init__(self, name: str, index: int, *, call_id: str, function: str) -> None:
        super().__init__(name, index)
        self._call_id = call_id
        self._function = function

    def item(self, status: Status) -> dict[str, Any]:
        """See Item."""
        return {
            "id": self.id,
            "type": "function_call",
            "status": status,
            "call_id": self._call_id,
            "name": self._function,
            "arguments": self.text,
        }

    def more(self, text: str, logprobs: Sequence[Mapping[str, Any]] = ()) -> Iterator[Said]:
        """See Item."""
        self.take(text, logprobs)
        yield "response.function_call_arguments.delta", {**self._place, "delta": text}

    def closing(self, status: Status) -> Iterator[Said]:
        """See Item."""
        done = {**self._place, "name": self._function, "arguments": self.text}
        yield "response.function_call_arguments.done", done
        yield from super().closing(status)

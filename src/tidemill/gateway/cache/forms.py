"""One answer in both forms: the JSON text that it is as a whole, and the events that it is as a stream.

What is not known to survive the change makes it impossible (None), and the answer then counts for its own form alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from tidemill.core.event_stream import EventStreamReader, OversizedEvent
from tidemill.serve.sse import frame

__all__ = ["Answer", "assembled", "decoded", "streamed"]

Answer = dict[str, Any]
"""A completion or a chat completion as the API has it."""
_TEXTS: Final = ("content", "reasoning_content", "reasoning", "refusal")
_NOTHING_SAID: Final = {"role": "assistant", "content": None, "refusal": None}
_OBJECTS: Final = {"chat.completion.chunk": "chat.completion", "text_completion": "text_completion"}
_CHUNKS: Final = {whole: chunk for chunk, whole in _OBJECTS.items()}
_SCALARS: Final = (str, int, float, bool)


class _Lossy(Exception):
    """Something has no place in the other form."""


def decoded(body: bytes) -> Answer | None:
    """A JSON object."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def assembled(body: bytes) -> Answer | None:
    """The whole answer of a stream that has come to its end marker without an error."""
    try:
        events = [event.data for event in EventStreamReader().feed(body)]
    except OversizedEvent:
        return None
    if not events or events.pop() != b"[DONE]":
        return None
    answer: Answer = {}
    choices: dict[int, dict[str, Any]] = {}
    for event in events:
        chunk = decoded(event)
        if chunk is None or chunk.get("error") is not None or chunk.get("object") not in _OBJECTS:
            return None
        try:
            _add_chunk(answer, choices, chunk)
        except (_Lossy, TypeError, KeyError):
            return None
    if not choices:
        return None
    return {**answer, "choices": [choices[index] for index in sorted(choices)]}


def streamed(answer: Answer, *, usage: bool) -> bytes | None:
    """The events of a whole answer, with its usage at the end where that is asked for."""
    kind = _CHUNKS.get(answer.get("object", ""))
    if kind is None or (usage and not isinstance(answer.get("usage"), dict)):
        return None
    head = {name: value for name, value in answer.items() if isinstance(value, _SCALARS)} | {"object": kind}
    try:
        chunks = [{**head, "choices": [part]} for choice in answer["choices"] for part in _parts(choice)]
    except (_Lossy, TypeError, KeyError, AttributeError):
        return None
    if usage:
        chunks.append({**head, "choices": [], "usage": answer["usage"]})
    return b"".join(frame(msgspec.json.encode(chunk)) for chunk in chunks) + b"data: [DONE]\n\n"


def _add_chunk(answer: Answer, choices: dict[int, dict[str, Any]], chunk: dict[str, Any]) -> None:
    for name, value in chunk.items():
        match name:
            case "choices":
                for part in value:
                    _add_part(choices, part)
            case "object":
                answer[name] = _OBJECTS[value]
            case "usage":
                answer[name] = value or answer.get(name)
            case _:
                _set(answer, name, value)


def _add_part(choices: dict[int, dict[str, Any]], part: dict[str, Any]) -> None:
    said = {"message": dict(_NOTHING_SAID)} if "delta" in part else {"text": ""}
    choice = choices.setdefault(
        part["index"], {"index": part["index"], **said, "logprobs": None, "finish_reason": None}
    )
    for name, value in part.items():
        match name:
            case "delta":
                message = choice["message"]
                for field, text in (value or {}).items():
                    if field in _TEXTS and isinstance(text, str):
                        message[field] = (message.get(field) or "") + text
                    else:
                        _set(message, field, text)
            case "text":
                choice[name] += value
            case "logprobs":
                choice[name] = _joined_lists(choice[name], value)
            case _:
                _set(choice, name, value)


def _set(where: dict[str, Any], name: str, value: Any) -> None:
    """The last value that is one; lists and objects would have to be put together, and nobody says how."""
    if value is None or value in ([], {}):
        where.setdefault(name, None)
    elif isinstance(value, _SCALARS):
        where[name] = value
    else:
        raise _Lossy


def _joined_lists(before: dict[str, Any] | None, more: dict[str, Any] | None) -> dict[str, Any] | None:
    if not before or not more:
        return more or before
    return {name: [*(before.get(name) or ()), *(more.get(name) or ())] or None for name in {**before, **more}}


def _parts(choice: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A choice as parts of chunks: who speaks, all of the text, the end."""
    own = {"index": choice["index"]}
    rest = {
        name: value
        for name, value in choice.items()
        if name not in ("index", "message", "text", "logprobs", "finish_reason")
    }
    if any(value and not isinstance(value, _SCALARS) for value in rest.values()):
        raise _Lossy
    said, logprobs = {"finish_reason": None}, {"logprobs": choice.get("logprobs")}
    ending = {**own, "logprobs": None, "finish_reason": choice["finish_reason"], **rest}
    if "text" in choice:
        yield {**own, "text": choice["text"], **logprobs, **said}
        yield {**ending, "text": ""}
        return
    message = {name: value for name, value in choice["message"].items() if value}
    if any(name not in (*_TEXTS, "role") for name in message):
        raise _Lossy
    yield {**own, "delta": {"role": message.pop("role", "assistant"), "content": ""}, "logprobs": None, **said}
    yield {**own, "delta": message, **logprobs, **said}
    yield {**ending, "delta": {}}

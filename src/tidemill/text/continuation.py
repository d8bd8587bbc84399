"""A conversation whose last message is not over: its prompt ends with that message's text.

The text is followed by a tag while the template renders, and the prompt is cut at it; transformers does the same
(``continue_final_message``). The tag is a noncharacter, which no message holds, and a space: a template that trims
texts takes the space, and then white space at the end of the message is not part of the prompt either.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tidemill.core.errors import InvalidRequest

__all__ = ["FIELD", "cut_at_tag", "tagged"]

FIELD: Final = "continue_final_message"
_NONCHARACTERS: Final = [chr(code) for code in range(0xFDEF, 0xFDCF, -1)]


def tagged(messages: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """The messages with the tag behind the last one's text, and the tag. ``messages``: normalised. Raises
    InvalidRequest where there is nothing to continue."""
    last = messages[-1]
    if last["role"] != "assistant":
        raise InvalidRequest(f"{FIELD}: the last message is of role {last['role']}, not assistant", param=FIELD)
    if not last["content"] or last.get("tool_calls"):
        raise InvalidRequest(f"{FIELD}: the last message has no text to continue, or calls tools", param=FIELD)
    said = repr(messages)
    free = [character for character in _NONCHARACTERS if character not in said and _escape(character) not in said]
    if not free:
        raise InvalidRequest("the messages use up the code points U+FDD0 to U+FDEF, which are no characters")
    return [*messages[:-1], {**last, "content": last["content"] + free[0] + " "}], free[0] + " "


def cut_at_tag(prompt: str, tag: str) -> str:
    """A rendered prompt up to the tag. Raises InvalidRequest where the template has left the text out."""
    text, mark, behind = prompt.rpartition(tag[0])
    if not mark:
        raise InvalidRequest(f"{FIELD}: the chat template leaves the last message's text out", param=FIELD)
    return text if behind.startswith(tag[1:]) else text.rstrip()


def _escape(character: str) -> str:
    return repr(character)[1:-1]

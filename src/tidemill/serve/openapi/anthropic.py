"""Bodies and answers of Anthropic's Messages API. Its bodies have no classes: a test compares the fields."""

from __future__ import annotations

from typing import Final

from tidemill.core.sampling import MAX_STOP_STRINGS
from tidemill.serve.anthropic_request import ANTHROPIC_IGNORED
from tidemill.serve.openapi.fields import FUNCTION, LITERAL, NULLS, VALUES
from tidemill.serve.openapi.shapes import Schema, any_of, constant, integer, listed, nullable, record, table, text
from tidemill.serve.tools import MAX_TOOLS

__all__ = ["COUNTED", "COUNT_BODY", "MESSAGE", "MESSAGES_BODY"]

_SWITCH: Final[Schema] = {"type": ["boolean", "null"]}
_TEXT_BLOCK: Final = record({"type": constant("text"), "text": text()}, more={})
_TEXT: Final = any_of(text(), listed(_TEXT_BLOCK))
_RESULT: Final = record({"type": constant("tool_result"), "tool_use_id": text()}, {"content": nullable(_TEXT)}, more={})
_CALL: Final = record({"type": constant("tool_use"), "id": text(), "name": text(), "input": table({})}, more={})
_THOUGHT: Final = record({"type": constant("thinking"), "thinking": text()}, {"signature": nullable(text())}, more={})
_HIDDEN: Final = record({"type": constant("redacted_thinking")}, more={})


def _turn(role: str, *blocks: Schema) -> Schema:
    content = any_of(text(), listed(any_of(_TEXT_BLOCK, *blocks)))
    return record({"role": constant(role), "content": content}, more={})


_TURN: Final = any_of(_turn("user", _RESULT), _turn("assistant", _CALL, _THOUGHT, _HIDDEN))
_TOOL: Final = record(
    {"name": FUNCTION["properties"]["name"], "input_schema": record({}, {"type": constant("object")}, more={})},
    {"type": constant("custom", None), "description": nullable(text()), "strict": _SWITCH},
    more={},
)
_CHOSEN: Final = {"disable_parallel_tool_use": _SWITCH}
_TOOL_CHOICE: Final = any_of(
    record({"type": constant("auto", "any", "none")}, {"name": {}, **_CHOSEN}, more=NULLS),
    record({"type": constant("tool"), "name": text()}, _CHOSEN, more=NULLS),
)
_DISPLAY: Final = {"display": constant("summarized", None)}
_THINKING: Final = any_of(
    record({"type": constant("enabled"), "budget_tokens": integer(1)}, _DISPLAY, more=NULLS),
    record({"type": constant("adaptive", "disabled")}, _DISPLAY, more=NULLS),
)
_OF_BOTH: Final[dict[str, Schema]] = {
    "model": nullable(text()),
    "system": nullable(_TEXT),
    "tools": nullable(listed(_TOOL, 0, MAX_TOOLS)),
    "tool_choice": nullable(_TOOL_CHOICE),
    "thinking": nullable(_THINKING),
    **{name: {"description": "Changes no answer."} for name in ANTHROPIC_IGNORED},
}
_TURNS: Final = {"messages": listed(_TURN, 1)}
MESSAGES_BODY: Final = record(
    {**_TURNS, "max_tokens": VALUES["max_tokens"]},
    {
        **_OF_BOTH,
        **{name: nullable(VALUES[name]) for name in ("temperature", "top_p", "top_k", "strategies")},
        "stream": _SWITCH,
        "stop_sequences": nullable(listed(LITERAL, 0, MAX_STOP_STRINGS)),
        "output_config": NULLS,
    },
    more=NULLS,
)
COUNT_BODY: Final = record(_TURNS, _OF_BOTH, more=NULLS)

_COUNT: Final = integer(0)
_BLOCK: Final = any_of(
    record({"type": constant("text"), "text": text()}),
    record({"type": constant("thinking"), "thinking": text(), "signature": text()}),
    record({"type": constant("tool_use"), "id": text(), "name": text(), "input": table({})}),
)
MESSAGE: Final = record(
    {
        "id": text(),
        "type": constant("message"),
        "role": constant("assistant"),
        "model": text(),
        "content": listed(_BLOCK),
        "stop_reason": constant("end_turn", "max_tokens", "tool_use", "stop_sequence"),
        "stop_sequence": nullable(text()),
        "usage": record(
            {
                "input_tokens": _COUNT,
                "cache_read_input_tokens": _COUNT,
                "cache_creation_input_tokens": _COUNT,
                "output_tokens": _COUNT,
            }
        ),
    }
)
COUNTED: Final = record({"input_tokens": _COUNT})

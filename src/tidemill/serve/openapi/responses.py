"""Bodies and answers of the Responses API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tidemill.core.sampling import MAX_TOP_LOGPROBS
from tidemill.serve.openapi.fields import FUNCTION, LARGEST, NAMED_SCHEMA, NULLS
from tidemill.serve.openapi.shapes import (
    Schema,
    any_of,
    constant,
    integer,
    listed,
    nullable,
    number,
    record,
    table,
    text,
)
from tidemill.serve.responses_request import LOGPROBS, PACKED_REASONING
from tidemill.serve.tools import MAX_TOOLS

__all__ = ["FIELDS", "response"]

_OF_OUTPUTS: Final[dict[str, Schema]] = {"id": {}, "status": {}}
"""What an item of an answer has besides what it says; nobody reads it when it comes back."""
_PART: Final = any_of(
    record({"type": constant("input_text", "output_text", "text"), "text": text()}, more={}),
    record({"type": constant("refusal"), "refusal": text()}, more={}),
)
_CONTENT: Final = any_of(text(), listed(_PART))
_ITEM: Final = any_of(
    record(
        {"role": constant("user", "assistant", "system", "developer"), "content": _CONTENT},
        {"type": constant("message"), "phase": {}, **_OF_OUTPUTS},
        more=NULLS,
    ),
    record(
        {"type": constant("reasoning")},
        {
            "content": nullable(listed(record({"type": constant("reasoning_text"), "text": text()}, more={}))),
            "summary": nullable(listed(record({"type": constant("summary_text"), "text": text()}, more={}))),
            "encrypted_content": nullable(text(description="As an answer had it.")),
            **_OF_OUTPUTS,
        },
        more=NULLS,
    ),
    record(
        {"type": constant("function_call"), "call_id": text(), "name": text(), "arguments": text()},
        _OF_OUTPUTS,
        more=NULLS,
    ),
    record({"type": constant("function_call_output"), "call_id": text(), "output": _CONTENT}, _OF_OUTPUTS, more=NULLS),
)
_FORMAT: Final = any_of(
    record({"type": constant("text")}),
    record({"type": constant("json_object")}, more=NULLS),
    record(
        {"type": constant("json_schema"), "schema": NAMED_SCHEMA["properties"]["schema"]},
        {name: {} for name in ("name", "description", "strict")},
        more=NULLS,
    ),
)
_SUMMARY: Final = constant("auto", None)
_TOOL: Final = record(
    {"type": constant("function"), "name": FUNCTION["properties"]["name"]},
    {name: kind for name, kind in FUNCTION["properties"].items() if name != "name"},
    more=NULLS,
)
FIELDS: Final[Mapping[str, Schema]] = {
    "include": listed(constant(LOGPROBS, PACKED_REASONING)),
    "input": any_of(text(), listed(_ITEM, 1)),
    "max_output_tokens": integer(1, LARGEST),
    "reasoning": record({}, {"effort": nullable(text()), "summary": _SUMMARY, "generate_summary": _SUMMARY}, more=None),
    "text": record({}, {"format": nullable(_FORMAT), "verbosity": NULLS}),
    "tool_choice": any_of(
        constant("none", "auto", "required"), record({"type": constant("function"), "name": text()}, more=NULLS)
    ),
    "tools": listed(_TOOL, 0, MAX_TOOLS),
    "top_logprobs": integer(0, MAX_TOP_LOGPROBS),
    "truncation": constant("disabled"),
}
"""What is other than on the other routes."""

_COUNT: Final = integer(0)
_STATUS: Final = constant("completed", "incomplete")


def response(logprob: Schema) -> Schema:
    """A whole answer. ``logprob``: what is said of a token, and of the most likely ones."""
    said = record(
        {
            "type": constant("output_text"),
            "text": text(),
            "annotations": listed({}, 0, 0),
            "logprobs": listed(logprob),
        }
    )
    thought = record({"type": constant("reasoning_text"), "text": text()})
    output = any_of(
        record(
            {
                "id": text(),
                "type": constant("message"),
                "role": constant("assistant"),
                "status": _STATUS,
                "content": listed(said, 1, 1),
            }
        ),
        record(
            {
                "id": text(),
                "type": constant("reasoning"),
                "summary": listed({}, 0, 0),
                "content": listed(thought, 1, 1),
                "status": _STATUS,
            },
            {"encrypted_content": text()},
        ),
        record(
            {
                "id": text(),
                "type": constant("function_call"),
                "status": _STATUS,
                "call_id": text(),
                "name": text(),
                "arguments": text(),
            }
        ),
    )
    return record(
        {
            "id": text(),
            "object": constant("response"),
            "created_at": integer(),
            "status": _STATUS,
            "background": constant(False),
            "error": NULLS,
            "incomplete_details": nullable(record({"reason": constant("max_output_tokens")})),
            "instructions": nullable(text()),
            "max_output_tokens": nullable(integer(1)),
            "max_tool_calls": NULLS,
            "metadata": table(text()),
            "model": text(),
            "output": listed(output, 1),
            "parallel_tool_calls": {"type": "boolean"},
            "previous_response_id": NULLS,
            "reasoning": record({"effort": nullable(text()), "summary": _SUMMARY}),
            "store": constant(False),
            "temperature": number(0),
            "text": record({"format": table({})}),
            "tool_choice": any_of(text(), table({})),
            "tools": listed(table({})),
            "top_logprobs": integer(0, MAX_TOP_LOGPROBS),
            "top_p": number(0, 1),
            "truncation": constant("disabled"),
            "usage": record(
                {
                    "input_tokens": _COUNT,
                    "input_tokens_details": record({"cached_tokens": _COUNT, "cache_write_tokens": _COUNT}),
                    "output_tokens": _COUNT,
                    "output_tokens_details": record({"reasoning_tokens": _COUNT}),
                    "total_tokens": _COUNT,
                }
            ),
            "user": nullable(text()),
        }
    )

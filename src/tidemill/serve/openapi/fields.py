"""What the fields of OpenAI's routes may hold, where that is more than a JSON type.

Bounds stand here once more, as the code that checks them is spread over what knows the model; tests hold both together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tidemill.core.grammar import MAX_CHOICE_TEXTS
from tidemill.core.sampling import MAX_BAD_WORDS, MAX_CHOICES, MAX_LOGIT_BIAS, MAX_STOP_STRINGS, MAX_TOP_LOGPROBS
from tidemill.frontend.strategy_choice import strategies_of_requests
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
from tidemill.serve.sampling_body import MAX_CACHE_SALT, MAX_PRIORITY
from tidemill.serve.tools import MAX_TOOLS

__all__ = ["FUNCTION", "LARGEST", "LITERAL", "NAMED_SCHEMA", "NULLS", "VALUES"]

LARGEST: Final = 2**31 - 1
NULLS: Final[Schema] = {"type": "null"}
"""Further fields of an object: names nobody knows may hold null."""
_TOKENS: Final = any_of(text(), listed(text(), 1), listed(integer(0), 1), listed(listed(integer(0), 1), 1))
LITERAL: Final = text(minLength=1)
_SCHEMA: Final = any_of(table({}), {"type": "boolean"}, text(minLength=2, description="The schema as text"))
_PART: Final = record({"type": constant("text", "input_text", "output_text"), "text": text()}, more={})
_CALL: Final = record({"function": record({}, {"arguments": {}}, more={})}, more={})
_MESSAGE: Final = record(
    {"role": constant("system", "developer", "user", "assistant", "tool")},
    {"content": nullable(any_of(text(), listed(_PART))), "tool_calls": nullable(listed(_CALL))},
    more={},
)
FUNCTION: Final = record(
    {"name": text(pattern="^[A-Za-z0-9_.-]{1,64}$")},
    {
        "description": nullable(text()),
        "parameters": nullable(record({}, {"type": constant("object")}, more={})),
        "strict": nullable({"type": "boolean"}),
    },
    more=NULLS,
)
_TOOLS: Final = listed(record({"type": constant("function"), "function": FUNCTION}, more=NULLS), 0, MAX_TOOLS)
_TOOL_CHOICE: Final = any_of(
    constant("none", "auto", "required"),
    record({"type": constant("function"), "function": record({"name": text()}, more=NULLS)}, more=NULLS),
)
NAMED_SCHEMA: Final = record({"schema": _SCHEMA}, {"name": {}, "description": {}, "strict": {}}, more=NULLS)
_FORMAT: Final = any_of(
    record({"type": constant("text")}),
    record({"type": constant("json_object")}, more=NULLS),
    record({"type": constant("json_schema"), "json_schema": NAMED_SCHEMA}, more=NULLS),
)
_CHOICES: Final = listed(LITERAL, 1, MAX_CHOICE_TEXTS)
_OFF: Final = constant(None, False)
_OUTPUTS: Final = {
    "json": any_of(_SCHEMA, _OFF),
    "json_object": {"type": ["boolean", "null"]},
    "regex": any_of(LITERAL, _OFF),
    "choice": any_of(_CHOICES, _OFF),
    "grammar": any_of(LITERAL, _OFF),
}
VALUES: Final[Mapping[str, Schema]] = {
    "timeout": number(above=0, high=86400),
    "priority": integer(-MAX_PRIORITY, MAX_PRIORITY),
    "expected_output_tokens": integer(1, LARGEST),
    "strategies": record({}, dict.fromkeys(strategies_of_requests(), constant("on", "off"))),
    "thinking_budget": integer(0, LARGEST),
    "max_reasoning_tokens": integer(0, LARGEST),
    "cache_salt": text(maxLength=MAX_CACHE_SALT),
    "temperature": number(0, 100),
    "top_p": number(above=0, high=1),
    "top_k": integer(-1, LARGEST),
    "min_p": number(0, 1),
    "repetition_penalty": number(above=0, high=10),
    "presence_penalty": number(-2, 2),
    "frequency_penalty": number(-2, 2),
    "logit_bias": table(
        number(-100, 100), propertyNames={"pattern": "^(0|[1-9][0-9]{0,9})$"}, maxProperties=MAX_LOGIT_BIAS
    ),
    "seed": integer(-(2**63), 2**63 - 1),
    "n": integer(1, MAX_CHOICES),
    "best_of": integer(1, MAX_CHOICES),
    "max_tokens": integer(1, LARGEST),
    "max_completion_tokens": integer(1, LARGEST),
    "min_tokens": integer(0, LARGEST),
    "stop": any_of(LITERAL, listed(LITERAL, 0, MAX_STOP_STRINGS)),
    "stop_token_ids": listed(integer(0)),
    "allowed_token_ids": listed(integer(0), 1),
    "bad_words": listed(LITERAL, 0, MAX_BAD_WORDS),
    "prompt_logprobs": integer(0, MAX_TOP_LOGPROBS),
    "top_logprobs": integer(0, MAX_TOP_LOGPROBS),
    "response_format": _FORMAT,
    "structured_outputs": record({}, _OUTPUTS, more=NULLS),
    "guided_json": _SCHEMA,
    "guided_regex": text(),
    "guided_choice": _CHOICES,
    "guided_grammar": text(),
    "json_schema": _SCHEMA,
    "grammar": text(),
    "messages": listed(_MESSAGE, 1),
    "tools": _TOOLS,
    "tool_choice": _TOOL_CHOICE,
    "prompt": _TOKENS,
    "input": _TOKENS,
    "dimensions": integer(1),
    "truncate_prompt_tokens": any_of(constant(-1), integer(1)),
    "tokens": listed(integer(0)),
}
"""Fields whose values have bounds or several forms, the same on every route that does not say otherwise."""

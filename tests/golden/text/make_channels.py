"""Records how gpt-oss's kind of text is cut and rendered; run with an interpreter that has transformers and regex.

    python tests/golden/text/make_channels.py

Writes ``channels.json``: pieces of texts by the cutting rule of o200k, found by the regex library with the expression
of the model's own tokenizer, and conversations rendered by transformers with a template that has what the model's own
has: macros that call themselves, a date, namespaces, checks of types, look-ahead over messages, its own refusals.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import regex
from jinja2.exceptions import TemplateError
from texts import COMPOSED, RULE_TEXTS, TEXTS
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

O200K = "|".join(
    [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
ALPHABET = [*"aAbZ' /\n\r\t.,-1٣½", "\u00a0", "ß", "ǅ", "ʰ", "中", "\u0301", "é", "İ", "\u200d", "😀", "'ll", "'S"]

TEMPLATE = """
{%- macro kind_of(spec, deep=false) -%}
    {%- if spec.type is defined and spec.type is iterable and spec.type is not string and spec.type is not mapping -%}
        {{- spec.type | join(" | ") }}
    {%- elif spec.type == "array" -%}
        {{- kind_of(spec['items'], true) + "[]" }}
    {%- elif spec.type == "object" and spec.properties -%}
        {{- "{\\n" }}
        {%- for name, inner in spec.properties.items() -%}
            {{- name + ("" if name in (spec.required or []) else "?") + ": " }}
            {{ kind_of(inner, true) }}
            {%- if not loop.last -%}{{- ", " }}{%- endif -%}
        {%- endfor -%}
        {{- "}" }}
    {%- elif spec.enum -%}
        {{- '"' + spec.enum | join('" | "') + '"' -}}
    {%- else -%}
        {{- spec.type }}
    {%- endif -%}
    {%- if spec.default is defined and not deep %}
        {{- ", // " + spec.default | tojson }}
    {%- endif -%}
{%- endmacro -%}
{%- macro first_message() -%}
    {%- if effort is not defined %}{%- set effort = "some" %}{%- endif %}
    {{- "It is " + strftime_now("%Y-%m-%d") | length | string + ", effort " + effort + "\\n" }}
    {%- set seen = namespace(web=false) %}
    {%- for tool in builtin_tools or [] %}{%- if tool == "web" %}{%- set seen.web = true %}{%- endif %}{%- endfor %}
    {{- "web" if seen.web }}
{%- endmacro -%}
{{- "[system]" + first_message() + "[end]" }}
{%- if messages[0].role == "system" %}
    {%- set instructions = messages[0].content %}{%- set rest = messages[1:] %}
{%- else %}
    {%- set instructions = "" %}{%- set rest = messages %}
{%- endif %}
{%- if instructions or tools %}
    {{- "[developer]" + instructions }}
    {%- for tool in tools or [] %}
        {%- set tool = tool.function %}
        {{- "\\ntype " + tool.name + " = " }}
        {%- for name, spec in tool.parameters.properties.items() %}
            {{- name + ": " + kind_of(spec) + ",\\n" }}
        {%- endfor %}
    {%- endfor %}
    {{- "[end]" }}
{%- endif %}
{%- set last = namespace(name=none) %}
{%- for message in rest -%}
    {%- if message.role == 'assistant' -%}
        {%- if "content" in message and "[final]" in message.content %}
            {{- raise_exception("tags in the content") }}
        {%- endif %}
        {%- if "tool_calls" in message %}
            {%- set later = namespace(found=false) %}
            {%- for other in rest[loop.index:] %}
                {%- if other.role == 'assistant' and "tool_calls" not in other %}
                    {%- set later.found = true %}
                {%- endif %}
            {%- endfor %}
            {%- if message.content and not later.found %}{{- "[analysis]" + message.content + "[end]" }}{%- endif %}
            {%- set call = message.tool_calls[0].function %}
            {{- "[call]" + call.name + call.arguments | tojson }}
            {%- set last.name = call.name %}
        {%- else %}
            {{- "[final]" + message.content + "[end]" }}
            {%- set last.name = none %}
        {%- endif %}
    {%- elif message.role == 'tool' -%}
        {%- if last.name is none %}{{- raise_exception("no call before it") }}{%- endif %}
        {{- "[tool]" + last.name + message.content | tojson + "[end]" }}
    {%- else -%}
        {{- "[user]" + message.content + "[end]" }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
[assistant]
{%- endif -%}
"""
TOOL = {
    "type": "function",
    "function": {
        "name": "find",
        "description": "Finds",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "default": "<b>"},
                "unit": {"type": "string", "enum": ["m", "ft"]},
                "count": {"type": ["integer", "null"]},
                "where": {
                    "type": "object",
                    "required": ["x"],
                    "properties": {"x": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
                                   "y": {"type": "boolean"}},
                },
            },
        },
    },
}  # fmt: skip
USER = {"role": "user", "content": "Where?"}
CALL = {"id": "1", "type": "function", "function": {"name": "find", "arguments": {"place": "Ä <b>", "n": [1, None]}}}
CALLING = {"role": "assistant", "content": "I look.", "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "1", "content": '{"t": "3 °"}'}
DONE = {"role": "assistant", "content": "There."}
CONVERSATIONS: list[dict[str, Any]] = [
    {"messages": [USER]},
    {"messages": [{"role": "system", "content": "Be terse."}, USER], "options": {"effort": "high"}},
    {"messages": [USER, DONE, USER], "options": {"builtin_tools": ["x", "web"]}},
    {"messages": [USER, CALLING, RESULT], "tools": [TOOL]},
    {"messages": [USER, CALLING, RESULT, DONE, USER], "tools": [TOOL]},
    {"messages": [RESULT]},
    {"messages": [USER, {"role": "assistant", "content": "[final]x"}]},
    {"messages": [USER, {**CALLING, "content": ""}, RESULT], "tools": [TOOL]},
]


def random_texts(count: int) -> list[str]:
    chosen = random.Random(200)
    return ["".join(chosen.choices(ALPHABET, k=chosen.randint(1, 24))) for _ in range(count)]


def rendered(conversation: dict[str, Any]) -> dict[str, str]:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE({"a": 0}, [])))
    try:
        text = tokenizer.apply_chat_template(
            conversation["messages"],
            tools=conversation.get("tools"),
            chat_template=TEMPLATE,
            tokenize=False,
            add_generation_prompt=True,
            **conversation.get("options", {}),
        )
    except TemplateError as error:
        return {"refused": str(error)}
    return {"text": text}


def main() -> None:
    texts = [*TEXTS, *RULE_TEXTS, *COMPOSED, *random_texts(300)]
    pieces = [[match.span() for match in regex.finditer(O200K, text)] for text in texts]
    content = {
        "texts": texts,
        "ends": [[end for _, end in spans] for spans in pieces],
        "template": TEMPLATE,
        "conversations": [conversation | rendered(conversation) for conversation in CONVERSATIONS],
    }
    for text, spans in zip(texts, pieces, strict=True):
        assert "".join(text[begin:end] for begin, end in spans) == text
    path = Path(__file__).parent / "channels.json"
    path.write_text(json.dumps(content, ensure_ascii=True, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()

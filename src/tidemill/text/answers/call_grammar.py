"""Grammars of answers that are calls: names and schemas of the functions in a format's own syntax.

In llguidance's dialect of Lark; ``%json`` is a JSON schema, ``<[7]>`` the token with that id, which is how a control
token can be asked for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tidemill.core.errors import InvalidRequest
from tidemill.core.grammar import Grammar
from tidemill.core.tools import Tool, ToolUse
from tidemill.text.answers.reasoning import Thinking
from tidemill.text.json_schema import tidied

__all__ = ["CallSyntax", "call_grammar"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSyntax:
    """How calls are written. Each part is a row of literals and marks; NAME and ARGUMENTS stand for those of a call."""

    call: tuple[str, ...]
    first: tuple[str, ...] = ()
    """Before the first call."""
    between: tuple[str, ...] | None = None
    """Between two calls; None: there is only one."""
    last: tuple[str, ...] = ()
    """Behind the last call."""
    trigger: str | None = None
    """The text that begins a call in the midst of an answer."""


NAME, ARGUMENTS = "\0name", "\0arguments"


def call_grammar(
    syntax: CallSyntax,
    use: ToolUse,
    *,
    token_of: Callable[[str], int | None],
    thinking: Thinking | None,
) -> Grammar:
    """The answers that are calls of ``use.callable``, one or several. ``token_of``: the id of a text that is a control
    token. ``thinking``: the answer begins within reasoning, which comes to its end first."""

    def row(parts: Sequence[str], tool: int | None = None) -> str:
        return " ".join(_symbol(part, tool, use.callable, token_of) for part in parts)

    rules = [f"call_{i}: {row(syntax.call, i)}" for i in range(len(use.callable))]
    rules += [f"arguments_{i}: %json {_schema(tool)}" for i, tool in enumerate(use.callable)]
    rules.append("call: " + " | ".join(f"call_{i}" for i in range(len(use.callable))))
    calls = "call"
    if use.parallel and use.name is None and syntax.between is not None:
        rules.append(f"further: {row(syntax.between)} call")
        calls = "call further*"
    begin = ""
    if thinking is not None:
        begin = "thought "
        close = token_of(thinking.close)
        if close is None:
            rules += [f"thought_end[lazy]: THOUGHT {json.dumps(thinking.close)}", "thought: thought_end SPACE"]
        else:
            rules += [f"thought: THOUGHT <[{close}]> SPACE"]
        rules += [r"THOUGHT: /(.|\n)*/", r"SPACE: /[ \n]{0,2}/"]
    rules.insert(0, f"start: {begin}{row(syntax.first)} {calls} {row(syntax.last)}")
    return Grammar(kind="calls", source="\n".join(rules), name="tools").checked()


def _symbol(part: str, tool: int | None, tools: Sequence[Tool], token_of: Callable[[str], int | None]) -> str:
    if part == ARGUMENTS:
        return f"arguments_{tool}"
    if part == NAME:
        assert tool is not None
        return json.dumps(tools[tool].name)
    token = token_of(part)
    return json.dumps(part, ensure_ascii=False) if token is None else f"<[{token}]>"


def _schema(tool: Tool) -> str:
    schema: dict[str, Any] = json.loads(json.dumps(tool.parameters or {"type": "object"}))
    if "x-guidance" in schema:
        raise InvalidRequest(f"the parameters of {tool.name} have a keyword x-guidance", param="tools")
    schema = tidied(schema, name="tools")
    # White space between JSON's marks is bounded, or a model could fill its answer with it.
    options = {"x-guidance": {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{0,24}"}}
    return json.dumps({"type": "object", **schema, **options})

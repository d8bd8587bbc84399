"""Grammars of answers that are calls: names and schemas of the functions in a format's own syntax."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tidemill.core.grammar import Grammar
from tidemill.core.tools import Tool, ToolUse
from tidemill.text.answers.call_rules import ANSWER, RuleWriter, TokenOf
from tidemill.text.answers.reasoning import Thinking

__all__ = [
    "ARGUMENTS",
    "NAME",
    "NAME_TEXT",
    "CallSyntax",
    "Kept",
    "OnlyCalls",
    "call_grammar",
    "write_call",
    "written_calls",
]

NAME: Final = "\0name"
NAME_TEXT: Final = "\0name text"
ARGUMENTS: Final = "\0arguments"
Kept = Sequence[bool]
"""Per function of ``use.callable``: whether its arguments are kept to its schema."""
OnlyCalls = Callable[[RuleWriter, ToolUse, Kept], str]
"""Writes the rules of one format, and returns what an answer is that is nothing but calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSyntax:
    """How calls are written. Each part is a row of literals and marks. NAME, NAME_TEXT (in quotes) and ARGUMENTS stand
    for those of a call."""

    call: tuple[str, ...]
    first: tuple[str, ...] = ()
    """Before the first call."""
    between: tuple[str, ...] | None = None
    """Between two calls; None: there is only one."""
    last: tuple[str, ...] = ()
    """Behind the last call."""


def call_grammar(
    calls: OnlyCalls,
    use: ToolUse,
    *,
    token_of: TokenOf,
    thinking: Thinking | None,
    answer: Grammar | None = None,
) -> Grammar:
    """The answers that are calls of ``use.callable``, or else what ``answer`` has. ``thinking``: they begin within
    reasoning, which comes to its end first. Raises InvalidRequest if it is too large."""
    write = RuleWriter(token_of)
    start = [calls(write, use, [tool.strict is not False for tool in use.callable])]
    if answer is not None:
        start.append(ANSWER)
    if thinking is not None:
        before = write.thought(thinking)
        start = [f"{before} {one}" for one in start]
    return write.rules(start, answer).grammar()


def written_calls(syntax: CallSyntax) -> OnlyCalls:
    """Calls in a syntax, one or several."""

    def calls(write: RuleWriter, use: ToolUse, kept: Kept) -> str:
        rows = []
        for index, tool in enumerate(use.callable):
            rows.append(write_call(write, syntax.call, tool, write.arguments(index, tool, kept=kept[index])))
        call = write.rule("call", *rows)
        further = ""
        if use.several and syntax.between is not None:
            further = write.rule("further", " ".join((*map(write.mark, syntax.between), call))) + "*"
        first, last = " ".join(map(write.mark, syntax.first)), " ".join(map(write.mark, syntax.last))
        return f"{first} {call} {further} {last}"

    return calls


def write_call(write: RuleWriter, parts: Sequence[str], tool: Tool, arguments: str) -> str:
    """A row of a syntax for one function. ``arguments``: their rule."""

    given = {ARGUMENTS: arguments, NAME: json.dumps(tool.name), NAME_TEXT: json.dumps(f'"{tool.name}"')}
    return " ".join(given[part] if part in given else write.mark(part) for part in parts)

"""Rules of answers that call functions, and what goes into them: schemas, control tokens, an answer of another kind.

The rules are in llguidance's dialect of Lark (https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md).
``<[7]>`` is the token with that id, which is how a control token is asked for; ``[lazy]`` ends a terminal where it
first may end. Names that the rules use and do not define: one per schema, CONTROL and ANSWER. ``text.grammars`` defines
them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from tidemill.core.errors import InvalidRequest
from tidemill.core.grammar import Grammar
from tidemill.core.tools import Tool
from tidemill.text.answers.reasoning import Thinking
from tidemill.text.json_schema import tidied

__all__ = [
    "ANSWER",
    "CONTROL",
    "SPACES",
    "ArgumentsSchema",
    "CallRules",
    "RuleWriter",
    "TokenOf",
    "any_of",
    "literal",
    "plain",
]

TokenOf = Callable[[str], int | None]
"""The id of a text that is a control token, else None."""
CONTROL: Final = "control"
"""Any control token that nothing else in the rules is about, end tokens left out."""
ANSWER: Final = "answer"
"""The grammar of the answer that calls nothing."""
SPACES: Final = r"[ \t\r\n]*"
"""An expression for white space, as the readers of calls pass it over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentsSchema:
    """A schema that a rule keeps to."""

    schema: dict[str, Any]
    """As the parser takes it."""
    tool: str
    place: str
    """Where it stands in the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRules:
    """A grammar of kind ``calls``, as it travels in ``Grammar.source``."""

    rules: str
    schemas: dict[str, ArgumentsSchema] = field(default_factory=dict)
    """By the names of their rules."""
    closed: tuple[int, ...] = ()
    """Control tokens that CONTROL is not."""
    answer: Grammar | None = None

    def grammar(self) -> Grammar:
        """As a grammar. Raises InvalidRequest if it is too large."""
        return Grammar(kind="calls", source=msgspec.json.encode(self).decode(), name="tools").checked()

    @classmethod
    def of(cls, grammar: Grammar) -> CallRules:
        """Those of a grammar of this kind."""
        return msgspec.json.decode(grammar.source, type=cls)


class RuleWriter:
    """Collects rules, and the schemas that they name."""

    def __init__(self, token_of: TokenOf) -> None:
        self._token_of = token_of
        self._lines: list[str] = []
        self._schemas: dict[str, ArgumentsSchema] = {}
        self._closed: set[int] = set()

    def rule(self, name: str, *alternatives: str) -> str:
        """Add a rule; returns its name."""
        self._lines.append(f"{name}: {' | '.join(alternatives)}")
        return name

    def schema(self, name: str, schema: Any, tool: Tool, path: str = "") -> str:
        """Add a rule for JSON that a schema accepts; returns its name."""
        place = f"{tool.place}{path}"
        if isinstance(schema, Mapping) and "x-guidance" in schema:
            raise InvalidRequest(f"{place} (function {tool.name!r}): there is no keyword x-guidance", param=place)
        own = json.loads(json.dumps(schema if isinstance(schema, Mapping) else {} if schema else {"not": {}}))
        self._schemas[name] = ArgumentsSchema(schema=tidied(own, name=place), tool=tool.name, place=place)
        return name

    def arguments(self, index: int, tool: Tool, *, kept: bool) -> str:
        """Add the rule for the arguments of a function: JSON, by its schema or (``kept`` False) any object."""
        schema = {"type": "object", **tool.parameters} if kept else {"type": "object"}
        return self.schema(f"arguments_{index}", schema, tool)

    def mark(self, text: str) -> str:
        """A mark: the control token of that name, or its text."""
        token = self._token_of(text)
        return literal(text) if token is None else f"<[{token}]>"

    def token(self, text: str) -> int | None:
        """The id of a mark that is a control token."""
        return self._token_of(text)

    def closes(self, *texts: str) -> None:
        """No control token that CONTROL may be."""
        self._closed |= {token for text in texts if (token := self._token_of(text)) is not None}

    def up_to(self, name: str, terminal: str, *marks: str) -> str:
        """Add a rule for text of a terminal up to the first of some marks, which is read; returns its name. A mark that
        is a control token is found in either form, as whoever reads the answer finds it."""
        ways = []
        for index, mark in enumerate(marks):
            token = self._token_of(mark)
            if token is not None:
                ways.append(f"{terminal} <[{token}]>")
            self._lines.append(f"{name}_{index}[lazy]: {terminal} {literal(mark)}")
            ways.append(f"{name}_{index}")
        return self.rule(name, *ways)

    def thought(self, thinking: Thinking) -> str:
        """Add the rules of a thought up to its end, the white space behind it included; returns their name."""
        self.closes(thinking.open, thinking.close)
        self._lines.append(r"THOUGHT: /(.|\n)*/")
        self.up_to("thought_end", "THOUGHT", thinking.close)
        self._lines.append(r"SPACE: /[ \n]{0,2}/")
        return self.rule("thought", f"(THOUGHT {CONTROL})* thought_end SPACE")

    def rules(self, start: Sequence[str], answer: Grammar | None = None) -> CallRules:
        """All of it. ``start``: the alternatives of the whole."""
        lines = (f"start: {' | '.join(start)}", *self._lines)
        return CallRules(
            rules="\n".join(lines), schemas=self._schemas, closed=tuple(sorted(self._closed)), answer=answer
        )


def literal(text: str) -> str:
    """A text as the rules write it; nothing for an empty one."""
    return json.dumps(text, ensure_ascii=False) if text else ""


def any_of(texts: Sequence[str]) -> str:
    """An expression that matches any of some texts."""
    return "(" + "|".join(map(plain, texts)) + ")"


def plain(text: str) -> str:
    """An expression that matches a text. Nothing may stand in it that the rules have for their own."""
    return re.sub(r"[^\w\s<>]", lambda mark: rf"\x{{{ord(mark[0]):X}}}", text)

"""What an answer has to look like: a JSON schema, a regular expression, a choice of texts, or a grammar."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from tidemill.core.errors import InvalidRequest

__all__ = ["MAX_CHOICE_TEXTS", "MAX_GRAMMAR_CHARACTERS", "Grammar", "GrammarKind"]

GrammarKind = Literal["json_object", "json_schema", "regex", "choice", "lark", "calls"]

MAX_GRAMMAR_CHARACTERS = 256 * 1024
MAX_CHOICE_TEXTS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """The texts that an answer may be. ``name`` is what the caller called it, for messages."""

    kind: GrammarKind
    source: str = ""
    """The schema as JSON, the expression, the texts as a JSON list, or the rules; empty for json_object; of calls a
    CallRules as JSON."""
    name: str = "grammar"

    @classmethod
    def json_object(cls, *, name: str = "grammar") -> Self:
        """Any JSON object."""
        return cls(kind="json_object", name=name)

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | bool, *, name: str = "grammar") -> Self:
        """JSON that a schema (draft 2020-12) accepts. A keyword that cannot be kept is refused, not left out."""
        return cls(kind="json_schema", source=json.dumps(schema), name=name)

    @classmethod
    def regex(cls, expression: str, *, name: str = "grammar") -> Self:
        """A text that an expression matches as a whole. No back-references; ``\\d``, ``\\w`` and ``\\s`` are ASCII."""
        return cls(kind="regex", source=expression, name=name)

    @classmethod
    def choice(cls, texts: Sequence[str], *, name: str = "grammar") -> Self:
        """One of some texts."""
        return cls(kind="choice", source=json.dumps(list(texts)), name=name)

    @classmethod
    def lark(cls, rules: str, *, name: str = "grammar") -> Self:
        """A context-free grammar as Lark writes it, from ``start`` on, or as llama.cpp does (GBNF), from ``root``."""
        return cls(kind="lark", source=rules, name=name)

    def checked(self) -> Self:
        """Return self if it is of a size that is worth compiling, else raise InvalidRequest."""
        if len(self.source) > MAX_GRAMMAR_CHARACTERS:
            raise InvalidRequest(
                f"{self.name} has {len(self.source)} characters; at most {MAX_GRAMMAR_CHARACTERS}", param=self.name
            )
        if not self.source and self.kind != "json_object":
            raise InvalidRequest(f"{self.name} is empty", param=self.name)
        if self.kind == "choice":
            self.texts()
        return self

    def texts(self) -> list[str]:
        """The texts of a choice; raises InvalidRequest for what is none."""
        texts = json.loads(self.source)
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text for text in texts):
            raise InvalidRequest(f"{self.name} must be a list of non-empty texts", param=self.name)
        if len(texts) > MAX_CHOICE_TEXTS:
            raise InvalidRequest(f"{self.name} has {len(texts)} texts; at most {MAX_CHOICE_TEXTS}", param=self.name)
        return texts

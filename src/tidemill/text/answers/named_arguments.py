"""Arguments by name, as formats write them that do not write JSON, kept to a schema.

    n=4, unit="m"                       n:4,unit:<escape>m<escape>

The properties come in the schema's order. Values are written the format's way where the schema is plain (text, texts
to choose from, true and false, and in braces also lists and objects of these), else as JSON, which readers of these
formats take as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tidemill.core.errors import UnsupportedParameter
from tidemill.core.tools import Tool
from tidemill.text.answers.call_rules import RuleWriter, literal, plain

__all__ = ["ArgumentStyle", "NamedArguments"]

_SAID: Final = frozenset(("title", "description", "default", "examples", "$comment", "deprecated"))
"""Keywords that allow and forbid nothing."""
_OBJECT: Final = frozenset(
    ("type", "properties", "required", "additionalProperties", "$defs", "definitions", "$schema", *_SAID)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentStyle:
    """How a format writes arguments."""

    equals: str
    """Between a name and its value."""
    comma: str
    """Between two arguments, without white space behind it."""
    words: tuple[str, str]
    """True and false."""
    quote: str | None = None
    """The mark on both sides of a text; None: quotes, single or double."""
    nested: bool = False
    """Lists and objects within are written the same way."""


class NamedArguments:
    """Writes rules for the arguments of one function."""

    def __init__(self, write: RuleWriter, style: ArgumentStyle, index: int, tool: Tool) -> None:
        self._write = write
        self._style = style
        self._tool = tool
        self._name = f"named_{index}"
        self._count = 0
        self._definitions = {k: tool.parameters[k] for k in ("$defs", "definitions") if k in tool.parameters}

    @staticmethod
    def write_common(write: RuleWriter, style: ArgumentStyle, *, ends: tuple[str, ...] = ()) -> None:
        """Add the rules that all functions share. ``ends``: marks that no text between marks may hold."""
        write.rule("GAP", r"/[ \n]{0,2}/")
        write.rule("SINGLE", r"/'([^'\\\n]|\\['\x22\\nrt])*'/")
        write.rule("DOUBLE", r"/\x22([^\x22\\\n]|\\['\x22\\nrt])*\x22/")
        write.rule("WORD", *map(literal, (*style.words, "true", "false", "null")))
        write.rule("NUMBER", r"/-?[0-9]{1,15}(\.[0-9]{1,17})?([eE][+-]?[0-9]{1,2})?/")
        write.rule("ARGUMENT", r"/[A-Za-z_][A-Za-z0-9_]{0,63}/")
        strings = ["SINGLE", "DOUBLE"]
        if style.quote is not None:
            held = "".join(f" & ~/(.|\\n)*{plain(mark)}(.|\\n)*/" for mark in ends)
            write.rule("BETWEEN", rf"/(.|\n)*/{held}")
            text = f"{write.mark(style.quote)} {write.up_to('text_end', 'BETWEEN', style.quote)}"
            strings = [write.rule("text", text), "DOUBLE"]
        write.rule("string", *strings)
        write.rule("items", '"[" GAP "]"', '"[" GAP value (GAP "," GAP value)* GAP "]"')
        write.rule("pair", f"(string | ARGUMENT) GAP {literal(':')} GAP value")
        write.rule("table", '"{" GAP "}"', '"{" GAP pair (GAP "," GAP pair)* GAP "}"')
        write.rule("value", "string", "NUMBER", "WORD", "items", "table")
        write.rule("loose_one", f"ARGUMENT {literal(style.equals)} value")
        write.rule("loose", f"(loose_one ({literal(style.comma)} GAP loose_one)*)?")

    def arguments(self, *, kept: bool) -> str:
        """Add the rules; returns the name of the one for all arguments. Raises UnsupportedParameter for a schema whose
        arguments cannot be written one by one."""
        schema = self._tool.parameters
        if not kept or not (schema.get("properties") or schema.get("additionalProperties", True) is False):
            return "loose"
        unnamed = set(schema.get("required") or ()) - set(schema.get("properties") or ())
        for keyword in schema:
            if keyword not in _OBJECT or (keyword == "required" and unnamed):
                raise UnsupportedParameter(
                    f"{self._tool.place}.{keyword} (function {self._tool.name!r}) cannot be kept to in the way this "
                    "model writes calls; strict false leaves its arguments free",
                    param=f"{self._tool.place}.{keyword}",
                )
        return self._object(schema, "")

    def _object(self, schema: Mapping[str, Any], path: str) -> str:
        """Rules from the last property to the first: ``rest`` behind another one, ``head`` where there was none."""
        required = schema.get("required") or ()
        comma = f"{literal(self._style.comma)} GAP"
        rest = head = '""'
        for name, part in reversed((schema.get("properties") or {}).items()):
            step = f"{path}.properties.{name}"
            one = self._new(f"{literal(self._named(name))} {literal(self._style.equals)} {self._value(part, step)}")
            behind = self._new(f"{comma} {one} {rest}")
            first = self._new(f"{one} {rest}")
            must = name in required
            head = first if must else self._new(first, head)
            rest = behind if must else self._new(behind, rest)
        return head

    def _value(self, schema: Any, path: str) -> str:
        return self._new(*self._values(schema, path))

    def _values(self, schema: Any, path: str) -> Iterator[str]:
        """The ways to write a value."""
        named = schema if isinstance(schema, Mapping) else {}
        told = {key: part for key, part in named.items() if key not in _SAID}
        match told:
            case {"type": "string", **others} if not others:
                yield "string"
                return
            case {"type": "boolean", **others} if not others:
                yield from map(literal, self._style.words)
                return
            case {"enum": list(texts), **others} if set(others) <= {"type"} and _all_text(texts):
                yield from map(self._quoted, texts)
                return
            case {"const": str(text), **others} if set(others) <= {"type"}:
                yield self._quoted(text)
                return
            case {"type": "array", "items": dict(items), **others} if self._style.nested and not others:
                one = self._value(items, f"{path}.items")
                yield f'"[" "]" | "[" {one} ({literal(self._style.comma)} GAP {one})* "]"'
                return
            case {"type": "object", "properties": dict(properties), **others} if (
                self._style.nested and properties and set(others) <= {"required", "additionalProperties"}
            ):
                yield f'"{{" {self._object(told, path)} "}}"'
                return
        whole = {**self._definitions, **schema} if isinstance(schema, Mapping) else schema
        yield self._write.schema(self._next(), whole, self._tool, path)

    def _named(self, name: str) -> str:
        return name if name.replace("_", "a").isalnum() and not name[0].isdigit() else json.dumps(name)

    def _quoted(self, text: str) -> str:
        if self._style.quote is None or self._style.quote in text:
            return " | ".join(dict.fromkeys((literal(json.dumps(text, ensure_ascii=False)), literal(repr(text)))))
        mark = self._write.mark(self._style.quote)
        return f"{mark} {literal(text)} {mark}"

    def _new(self, *alternatives: str) -> str:
        return self._write.rule(self._next(), *alternatives)

    def _next(self) -> str:
        self._count += 1
        return f"{self._name}_{self._count}"


def _all_text(values: list[Any]) -> bool:
    return bool(values) and all(isinstance(value, str) for value in values)

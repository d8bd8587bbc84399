"""Calls with arguments by name, in the formats that do not write JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidemill.core.tools import ToolUse
from tidemill.text.answers.call_grammar import Kept, OnlyCalls
from tidemill.text.answers.call_rules import RuleWriter, literal
from tidemill.text.answers.gemma import GemmaMarks
from tidemill.text.answers.named_arguments import ArgumentStyle, NamedArguments

__all__ = ["gemma_body", "only_gemma", "only_pythonic", "pythonic_arguments"]

_PYTHON: Final = ArgumentStyle(equals="=", comma=",", words=("True", "False"))


def gemma_body(write: RuleWriter, marks: GemmaMarks, use: ToolUse, kept: Kept) -> str:
    """The rule of a call from behind the mark that opens it to the one that closes it."""
    style = ArgumentStyle(equals=":", comma=",", words=("true", "false"), quote=marks.quote, nested=True)
    arguments = _arguments(write, style, use, kept, ends=(marks.close,))
    called = write.rule("called", *_calls(use, arguments, "{", "}"))
    return write.rule("body", f'"call:" {called} {write.mark(marks.close)}')


def pythonic_arguments(write: RuleWriter, use: ToolUse, kept: Kept) -> list[str]:
    """The rules of each function's arguments; adds ``written``, a call, and ``further``, one that is not the first."""
    arguments = _arguments(write, _PYTHON, use, kept)
    write.rule("written", *_calls(use, arguments, "(", ")"))
    write.rule("further", '"," GAP written')
    return arguments


def only_gemma(marks: GemmaMarks) -> OnlyCalls:
    """Calls between marks, one or several."""

    def calls(write: RuleWriter, use: ToolUse, kept: Kept) -> str:
        body = gemma_body(write, marks, use, kept)
        return f"({write.mark(marks.open)} {body})" + ("+" if use.several else "")

    return calls


def only_pythonic(write: RuleWriter, use: ToolUse, kept: Kept) -> str:
    """A list of calls."""
    pythonic_arguments(write, use, kept)
    return f'"[" written {"further*" if use.several else ""} "]"'


def _arguments(
    write: RuleWriter, style: ArgumentStyle, use: ToolUse, kept: Kept, *, ends: tuple[str, ...] = ()
) -> list[str]:
    NamedArguments.write_common(write, style, ends=ends)
    return [
        NamedArguments(write, style, index, tool).arguments(kept=kept[index]) for index, tool in enumerate(use.callable)
    ]


def _calls(use: ToolUse, arguments: Sequence[str], begin: str, end: str) -> list[str]:
    return [
        f"{literal(tool.name)} {literal(begin)} {of} {literal(end)}"
        for tool, of in zip(use.callable, arguments, strict=True)
    ]

"""Grammars of answers that may call: free text, until the model itself opens a call; then the call fits its schema.

    start    text ... | call text ... | ...        a text of the grammar may end anywhere outside a call
    call     TEXT up to the mark that opens one, then the function, its arguments and the closing mark

Where a format has no mark, a call is known by how the answer begins: text is then what does not begin so. Control
tokens are free in text. A thought in front of the answer is free as well, whatever marks stand in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from tidemill.core.grammar import Grammar
from tidemill.core.tools import ToolUse
from tidemill.text.answers import harmony, llama3, pythonic
from tidemill.text.answers.call_grammar import CallSyntax, Kept, write_call
from tidemill.text.answers.call_rules import CONTROL, SPACES, RuleWriter, TokenOf, any_of, literal, plain
from tidemill.text.answers.gemma import GemmaMarks
from tidemill.text.answers.native_calls import gemma_body, pythonic_arguments
from tidemill.text.answers.reasoning import Thinking

__all__ = [
    "Frame",
    "OpenCalls",
    "gemma_calls",
    "harmony_calls",
    "llama3_calls",
    "marked_calls",
    "open_grammar",
    "pythonic_calls",
]

_ANY: Final = r"(.|\n)*"


class Frame:
    """What is around the calls of an answer: the thought in front, and where the text begins."""

    def __init__(self, write: RuleWriter, thinking: Thinking | None, *, opened: bool) -> None:
        """``opened``: the answer begins within a thought."""
        self._write = write
        self._thinking = thinking
        self._opened = opened

    def starts(self, main: str) -> list[str]:
        """The alternatives of the whole. ``main``: the answer without a thought."""
        if self._thinking is None:
            return [main]
        thought = self._write.thought(self._thinking)
        cut = self._write.rule("cut_thought", f"(THOUGHT {CONTROL})* THOUGHT")
        if self._opened:
            return [f"{thought} {main}", cut]
        self._write.rule("BLANK", f"/{SPACES}/")
        opening = self._write.up_to("opening", "BLANK", self._thinking.open)
        return [main, f"{opening} {thought} {main}", f"{opening} {cut}"]


OpenCalls = Callable[[RuleWriter, Frame, ToolUse, Kept], list[str]]
"""Writes the rules of one format, and returns the alternatives of the whole."""


def marked_calls(syntax: CallSyntax) -> OpenCalls:
    """Calls that begin with a mark, anywhere in the answer."""

    def calls(write: RuleWriter, frame: Frame, use: ToolUse, kept: Kept) -> list[str]:
        (mark, *begin), call = (syntax.first, syntax.call) if syntax.first else (syntax.call[:1], syntax.call[1:])
        written = []
        for index, tool in enumerate(use.callable):
            arguments = write.arguments(index, tool, kept=kept[index])
            written.append(write_call(write, call, tool, arguments))
        one = write.rule("call", *written)
        several = ""
        if syntax.first and syntax.between is not None:
            several = write.rule("further", f"{' '.join(map(write.mark, syntax.between))} {one}") + "*"
        first, last = " ".join(map(write.mark, begin)), " ".join(map(write.mark, syntax.last))
        return _among_text(write, frame, mark, write.rule("body", f"{first} {one} {several} {last}"))

    return calls


def gemma_calls(marks: GemmaMarks) -> OpenCalls:
    """``call:f{a:1}`` between marks."""

    def calls(write: RuleWriter, frame: Frame, use: ToolUse, kept: Kept) -> list[str]:
        return _among_text(write, frame, marks.open, gemma_body(write, marks, use, kept))

    return calls


def llama3_calls(write: RuleWriter, frame: Frame, use: ToolUse, kept: Kept) -> list[str]:
    """Objects that an answer begins with, known by the name of a function whose arguments are kept to its schema."""
    begin = rf"[ \t\r\n;]*({plain(llama3.TAG)})?{SPACES}\{{{SPACES}\x22name\x22{SPACES}:{SPACES}\x22"
    calls, names = [], []
    for index, tool in enumerate(use.callable):
        if not kept[index]:
            continue
        names.append(tool.name)
        write.rule(f"begin_{index}[lazy]", rf"/{begin}{plain(tool.name)}\x22/")
        arguments = write.arguments(index, tool, kept=True)
        calls.append(write.rule(f"call_{index}", f'begin_{index} ", \\"parameters\\": " {arguments} "}}"'))
    known = rf"{begin}{any_of(names)}\x22"
    return _at_the_beginning(write, frame, calls, known, tag=llama3.TAG, lead=r"[ \t\r\n;]*", again=True)


def pythonic_calls(write: RuleWriter, frame: Frame, use: ToolUse, kept: Kept) -> list[str]:
    """A list that an answer begins with, known by a function's name behind its bracket."""
    begin = rf"{SPACES}({plain(pythonic.OPEN)})?{SPACES}\[{SPACES}"
    arguments = pythonic_arguments(write, use, kept)
    firsts = []
    for index, tool in enumerate(use.callable):
        write.rule(f"begin_{index}[lazy]", rf"/{begin}{plain(tool.name)}\(/")
        firsts.append(f'begin_{index} {arguments[index]} ")"')
    calls = [write.rule("calls", f'({" | ".join(firsts)}) further* "]"')]
    known = rf"{begin}{any_of([tool.name for tool in use.callable])}\("
    return _at_the_beginning(write, frame, calls, known, tag=pythonic.OPEN, lead=SPACES, again=False)


def harmony_calls(write: RuleWriter, frame: Frame, use: ToolUse, kept: Kept) -> list[str]:
    """Messages addressed to functions. A header is text and control tokens up to the mark behind which its message is;
    thoughts are messages like others, so nothing is in front of them."""
    del frame
    heads = (harmony.START, harmony.CHANNEL, harmony.END)
    write.closes(harmony.MESSAGE, *heads)
    to = literal("to=functions.")
    write.rule("TEXT", f"/{_ANY}/")
    write.rule("HEAD", rf"/{_ANY}/ & ~/{_ANY}{plain('to=functions.')}{_ANY}/")
    write.rule("addressed[lazy]", f"HEAD {to}")
    write.rule("NAME_END", r"/([ \n][\w \n]{0,40})?/")
    write.rule("marked", f"({write.mark(harmony.CONSTRAIN)} | {write.mark(harmony.CHANNEL)}) /[\\w ]{{0,40}}/")
    message = write.mark(harmony.MESSAGE)
    calls = [
        f"{literal(tool.name)} NAME_END marked* {message} {write.arguments(index, tool, kept=kept[index])} behind"
        for index, tool in enumerate(use.callable)
    ]
    # Where it is a control token it ends the answer, or is any other one.
    call_end = [] if write.token(harmony.CALL) is not None else [harmony.CALL]
    write.rule("behind", '""', f"({CONTROL} | {' | '.join(map(write.mark, (*heads, *call_end)))}) header")
    begins, next_head = write.up_to("begins", "HEAD", harmony.MESSAGE), write.up_to("next_head", "HEAD", *heads)
    ends = write.up_to("ends", "TEXT", *heads)
    write.rule("body", "TEXT", f"TEXT {CONTROL} body", f"{ends} header")
    call = write.rule("call", *calls)
    write.rule("header", "HEAD", f"HEAD {CONTROL} header", f"{next_head} header", f"{begins} body", f"addressed {call}")
    return ["header"]


def _among_text(write: RuleWriter, frame: Frame, mark: str, body: str) -> list[str]:
    """Text, and calls in it, by the mark that they begin with."""
    write.closes(mark)
    write.rule("TEXT", f"/{_ANY}/")
    opening = write.up_to("open", "TEXT", mark)
    return frame.starts(write.rule("main", "TEXT", f"TEXT {CONTROL} main", f"{opening} {body} main"))


def _at_the_beginning(
    write: RuleWriter, frame: Frame, calls: Sequence[str], known: str, *, tag: str, lead: str, again: bool
) -> list[str]:
    """Calls, then text that does not begin like one. ``tag``: the mark that may stand before a call; ``again``: what is
    behind a call is read as its beginning is."""
    write.closes(tag)
    write.rule("TEXT", f"/{_ANY}/")
    write.rule("CLEAN", f"/{_ANY}/ & ~/{known}{_ANY}/")
    tagged = ""
    token = write.token(tag)
    if token is not None:
        write.rule("LEAD", f"/{lead}/")
        tagged = f"(LEAD <[{token}]>)? "
    call = f"{tagged}({' | '.join(calls)})"
    behind = "main" if again else write.rule("behind", f"TEXT ({CONTROL} TEXT)*")
    # Text ends where a call has begun, for its terminal is lazy; behind a control token, CLEAN says so as well.
    text = f"{tagged}TEXT ({CONTROL} CLEAN)*"
    return frame.starts(write.rule("main", text, f"{call} {behind}", f"{CONTROL} main"))


def open_grammar(
    calls: OpenCalls, use: ToolUse, kept: Kept, *, token_of: TokenOf, thinking: Thinking | None, opened: bool
) -> Grammar:
    """The grammar of one answer. Raises InvalidRequest if it is too large."""
    write = RuleWriter(token_of)
    return write.rules(calls(write, Frame(write, thinking, opened=opened), use, kept)).grammar()

"""The form of a model's answers: where reasoning, content and calls are in them, as its chat template shows.

A template prints earlier calls as the model was trained to write them, so its text tells the format.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from tidemill.core.errors import UnsupportedParameter
from tidemill.core.grammar import Grammar
from tidemill.core.tools import ToolUse
from tidemill.text.answers import deepseek, gemma, harmony, hermes, llama3, mistral, pythonic
from tidemill.text.answers.call_grammar import ARGUMENTS, NAME, CallSyntax, call_grammar
from tidemill.text.answers.feed import AnswerParser, Feed, Steps
from tidemill.text.answers.plain_json import plain_json
from tidemill.text.answers.reasoning import THINKING, Thinking, reasoning

__all__ = ["AnswerForm", "AnswerFormName", "build_answer_form"]

AnswerFormName = Literal["auto", "none", "hermes", "llama3", "mistral", "pythonic", "deepseek", "gemma", "harmony"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Format:
    """One way to write calls."""

    read: Callable[[Feed], Steps[None]]
    marks: tuple[str, ...]
    """Texts that are control tokens in some vocabularies, and have to be seen."""
    syntax: CallSyntax | None = None
    """None: an answer that has to call is a plain list in JSON."""


_JSON_CALL: Final = ('{"name": "', NAME, '", "arguments": ', ARGUMENTS, "}")
_PLAIN: Final = CallSyntax(first=("[",), call=_JSON_CALL, between=(", ",), last=("]",))
_HARMONY: Final = CallSyntax(
    call=(
        harmony.CHANNEL,
        "commentary to=functions.",
        NAME,
        " ",
        harmony.CONSTRAIN,
        "json",
        harmony.MESSAGE,
        ARGUMENTS,
    )
)
_FORMATS: Final = {
    "hermes": _Format(
        read=hermes.hermes,
        marks=(hermes.OPEN, hermes.CLOSE),
        syntax=CallSyntax(call=(hermes.OPEN, "\n", *_JSON_CALL, "\n", hermes.CLOSE), between=("\n",)),
    ),
    "llama3": _Format(
        read=llama3.llama3,
        marks=(llama3.TAG,),
        syntax=CallSyntax(call=('{"name": "', NAME, '", "parameters": ', ARGUMENTS, "}")),
    ),
    "mistral": _Format(
        read=mistral.mistral,
        marks=(mistral.OPEN, mistral.ARGS, mistral.CALL_ID),
        syntax=CallSyntax(first=(mistral.OPEN, " ["), call=_JSON_CALL, between=(", ",), last=("]",)),
    ),
    "pythonic": _Format(read=pythonic.pythonic, marks=(pythonic.OPEN, pythonic.CLOSE)),
    "deepseek": _Format(
        read=deepseek.deepseek,
        marks=(deepseek.OPEN, deepseek.CLOSE, deepseek.CALL, deepseek.CALL_END, deepseek.SEP),
        syntax=CallSyntax(
            first=(deepseek.OPEN,),
            call=(deepseek.CALL, NAME, deepseek.SEP, ARGUMENTS, deepseek.CALL_END),
            between=(),
            last=(deepseek.CLOSE,),
        ),
    ),
    "gemma": _Format(
        read=gemma.gemma,
        marks=tuple(text for marks in gemma.MARKS for text in (marks.open, marks.close, marks.quote)),
    ),
    "harmony": _Format(
        read=lambda feed: harmony.harmony(feed, calls=True),
        marks=(
            harmony.START,
            harmony.END,
            harmony.MESSAGE,
            harmony.CHANNEL,
            harmony.CONSTRAIN,
            harmony.CALL,
            harmony.RETURN,
        ),
        syntax=_HARMONY,
    ),
}
_NEWER_MISTRAL: Final = CallSyntax(call=(mistral.OPEN, NAME, mistral.ARGS, ARGUMENTS), between=())
_OLDER_DEEPSEEK: Final = CallSyntax(
    first=(deepseek.OPEN,),
    call=(
        deepseek.CALL,
        "function",
        deepseek.SEP,
        NAME,
        "\n```json\n",
        ARGUMENTS,
        "\n```",
        deepseek.CALL_END,
    ),
    between=("\n",),
    last=(deepseek.CLOSE,),
)
_SIGNS: Final = (
    ("harmony", ("<|channel|>", "<|message|>")),
    ("deepseek", (deepseek.CALL,)),
    ("mistral", (mistral.OPEN,)),
    ("gemma", (gemma.MARKS[0].open,)),
    ("gemma", (gemma.MARKS[1].open,)),
    ("hermes", (hermes.OPEN,)),
    ("pythonic", ("[func_name1(",)),
    ("pythonic", (pythonic.OPEN,)),
    ("llama3", ('"parameters": dictionary of argument name',)),
    ("llama3", (llama3.TAG,)),
)
"""Formats by texts that templates of their kind have, all of them; the first that fits counts."""
_OTHERS: Final = ("<function=", "<arg_key>", "<parameter name=")
"""What templates of formats have that are not known here, though they use marks of others."""


class AnswerForm:
    """How one model's answers are read. Without arguments: as they are."""

    def __init__(
        self,
        *,
        name: str | None = None,
        thinking: Thinking | None = None,
        template: str = "",
        reads: Collection[str] = (),
        token_of: Callable[[str], int | None] = lambda _: None,
    ) -> None:
        """``name``: of the format of calls. ``reads``: the variables that the template reads. ``token_of``: the id of
        a text that is a control token, else None."""
        self._format = None if name is None else _FORMATS[name]
        self._name = name
        self._thinking = thinking
        self._template = template
        self._reads = frozenset(reads)
        self._token_of = token_of

    def reads(self, option: str) -> bool:
        """Whether the chat template looks at a variable."""
        return option in self._reads

    def check_tools(self) -> None:
        """Raise UnsupportedParameter where the model cannot be given tools."""
        if not self.reads("tools"):
            raise UnsupportedParameter("the model's chat template has no place for tools", param="tools")
        if self._format is None:
            raise UnsupportedParameter(
                "how this model writes calls is not known from its chat template: set answer_parser at the start",
                param="tools",
            )

    def marks(self, use: ToolUse) -> tuple[str, ...]:
        """Control tokens that have to be seen in the text that is parsed."""
        calls = self._format.marks if self._format and (use.tools or self._name == "harmony") else ()
        return calls + ((self._thinking.open, self._thinking.close) if self._thinking else ())

    def opened(self, prompt_end: str) -> bool:
        """Whether a prompt ends within reasoning. ``prompt_end``: its last characters, the marks shown."""
        return self._thinking is not None and prompt_end.rstrip().endswith(self._thinking.open)

    def parser(self, use: ToolUse, *, opened: bool) -> AnswerParser | None:
        """A parser of one answer; None: all of it is content. ``opened``: the prompt ends within reasoning."""
        calls = bool(use.tools) and self._format is not None
        if not calls and self._thinking is None and self._name != "harmony":
            return None
        feed = Feed(trims=bool(use.tools) or self._name == "harmony", most_calls=None if use.parallel else 1)
        return AnswerParser(feed, self._steps(feed, use, opened=opened))

    def grammar(self, use: ToolUse, *, opened: bool) -> Grammar:
        """What keeps an answer to calls of the functions. Raises InvalidRequest for schemas that are too large."""
        assert self._format is not None
        thinking = self._thinking if opened else None
        return call_grammar(self._syntax(), use, token_of=self._token_of, thinking=thinking)

    def call_id(self) -> str:
        """A new one. Mistral's templates take nothing but nine letters and digits."""
        return secrets.token_hex(5)[:9] if self._name == "mistral" else f"call_{secrets.token_hex(12)}"

    def _syntax(self) -> CallSyntax:
        assert self._format is not None
        if self._name == "mistral" and mistral.ARGS in self._template:
            return _NEWER_MISTRAL
        if self._name == "deepseek" and "```json" in self._template:
            return _OLDER_DEEPSEEK
        return self._format.syntax or _PLAIN

    def _steps(self, feed: Feed, use: ToolUse, *, opened: bool) -> Steps[None]:
        if self._name == "harmony":
            yield from harmony.harmony(feed, calls=bool(use.tools))
            return
        if self._thinking is not None:
            yield from reasoning(feed, self._thinking, opened=opened)
        if self._format is None or not use.tools:
            yield from feed.rest()
        elif use.choice == "required" and self._format.syntax is None:
            yield from plain_json(feed)
        else:
            yield from self._format.read(feed)


def build_answer_form(
    templates: Mapping[str, str],
    *,
    reads: Collection[str],
    token_of: Callable[[str], int | None],
    parser: AnswerFormName = "auto",
) -> AnswerForm:
    """The form of a model's answers, from the texts of its chat templates."""
    if parser == "none":
        return AnswerForm(reads=reads)
    text = "\n".join(templates.values())
    name = _told(text) if parser == "auto" else parser
    thinking = next((marks for marks in THINKING if marks.close in text), None) if name != "harmony" else None
    return AnswerForm(name=name, thinking=thinking, template=text, reads=reads, token_of=token_of)


def _told(template: str) -> str | None:
    if any(sign in template for sign in _OTHERS):
        return None
    return next((name for name, signs in _SIGNS if all(sign in template for sign in signs)), None)

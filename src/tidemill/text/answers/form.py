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
from tidemill.core.reasoning import ReasoningBudget
from tidemill.core.tools import ToolUse
from tidemill.text.answers import deepseek, gemma, harmony, hermes, llama3, mistral, pythonic
from tidemill.text.answers.call_grammar import (
    ARGUMENTS,
    NAME,
    NAME_TEXT,
    CallSyntax,
    OnlyCalls,
    call_grammar,
    written_calls,
)
from tidemill.text.answers.feed import AnswerParser, Feed, Steps
from tidemill.text.answers.native_calls import only_gemma, only_pythonic
from tidemill.text.answers.open_calls import (
    OpenCalls,
    gemma_calls,
    harmony_calls,
    llama3_calls,
    marked_calls,
    open_grammar,
    pythonic_calls,
)
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
        # Cut as JSON is, so that an answer in JSON may be the other way to go on.
        syntax=CallSyntax(
            call=("{", '"name"', ":", " ", NAME_TEXT, ",", " ", '"parameters"', ":", " ", ARGUMENTS, "}")
        ),
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
_SWITCHES: Final = ("enable_thinking", "thinking")
"""Qwen 3, GLM, SmolLM3 and others; DeepSeek V3.1 and Granite."""
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
        mark_of: Callable[[str], int | None] = lambda _: None,
        strict_tools: bool = False,
    ) -> None:
        """``name``: of the format of calls. ``reads``: the variables that the template reads. ``token_of``: the id of
        a text that is a control token, else None; ``mark_of``: of one that is any token. ``strict_tools``: functions
        that do not say whether they are strict are so."""
        self._strict_tools = strict_tools
        self._format = None if name is None else _FORMATS[name]
        self._name = name
        self._thinking = thinking
        self._template = template
        self._reads = frozenset(reads)
        self._token_of = token_of
        self._mark_of = mark_of

    @property
    def reasons(self) -> bool:
        """Whether answers may begin with reasoning."""
        return self._thinking is not None or self._name == "harmony"

    @property
    def switch(self) -> str | None:
        """The variable with which the chat template switches reasoning on and off."""
        return next((name for name in _SWITCHES if self.reads(name)), None)

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

    def opened(self, prompt_end: str, continued: str = "") -> bool:
        """Whether a prompt ends within reasoning. ``prompt_end``: its last characters, the marks shown; ``continued``:
        the text of the message that the answer goes on with."""
        if self._thinking is None:
            return False
        last_open, last_close = continued.rfind(self._thinking.open), continued.rfind(self._thinking.close)
        return last_open > last_close or prompt_end.rstrip().endswith(self._thinking.open)

    def budget(self, tokens: int, *, opened: bool) -> ReasoningBudget | None:
        """What keeps reasoning to so many tokens; None where its marks are not one token each."""
        if self._thinking is None:
            return None
        begin, end = self._mark_of(self._thinking.open), self._mark_of(self._thinking.close)
        if begin is None or end is None:
            return None
        return ReasoningBudget(tokens=tokens, open=begin, close=end, opened=opened)

    def parser(self, use: ToolUse, *, opened: bool, continued: bool = False) -> AnswerParser | None:
        """A parser of one answer; None: all of it is content. ``opened``: the prompt ends within reasoning;
        ``continued``: the answer goes on with the text of a message."""
        calls = bool(use.tools) and self._format is not None
        if not calls and self._thinking is None and self._name != "harmony":
            return None
        feed = Feed(trims=bool(use.tools) or self._name == "harmony", most_calls=None if use.parallel else 1)
        return AnswerParser(feed, self._steps(feed, use, opened=opened, continued=continued))

    def grammar(self, use: ToolUse, *, opened: bool, answer: Grammar | None = None) -> Grammar | None:
        """What keeps an answer with tools to what it may be; None: nothing. ``answer``: what it has to be where it
        calls nothing. Raises InvalidRequest for schemas that are too large, or cannot be kept to in this format."""
        assert self._format is not None
        thinking = self._thinking if opened else None
        if use.choice == "required":
            only = written_calls(self._syntax() or _PLAIN)
            return call_grammar(only, use, token_of=self._token_of, thinking=thinking)
        if answer is not None:
            return call_grammar(self._only(), use, token_of=self._token_of, thinking=thinking, answer=answer)
        kept = [self._strict_tools if tool.strict is None else tool.strict for tool in use.callable]
        if not any(kept):
            return None
        return open_grammar(self._opens(), use, kept, token_of=self._token_of, thinking=self._thinking, opened=opened)

    def call_id(self) -> str:
        """A new one. Mistral's templates take nothing but nine letters and digits."""
        return secrets.token_hex(5)[:9] if self._name == "mistral" else f"call_{secrets.token_hex(12)}"

    def _syntax(self) -> CallSyntax | None:
        """How calls are written; None: not as JSON."""
        assert self._format is not None
        if self._name == "mistral" and mistral.ARGS in self._template:
            return _NEWER_MISTRAL
        if self._name == "deepseek" and "```json" in self._template:
            return _OLDER_DEEPSEEK
        return self._format.syntax

    def _only(self) -> OnlyCalls:
        """Writes answers that are nothing but calls as the model writes them."""
        syntax = self._syntax()
        if syntax is not None:
            return written_calls(syntax)
        return only_gemma(self._gemma_marks()) if self._name == "gemma" else only_pythonic

    def _opens(self) -> OpenCalls:
        """Writes answers that may have calls in them."""
        syntax = self._syntax()
        match self._name:
            case "harmony":
                return harmony_calls
            case "llama3":
                return llama3_calls
            case "deepseek" if syntax is not None:  # what is around the calls is not needed to read one
                return marked_calls(CallSyntax(call=syntax.call))
        if syntax is not None:
            return marked_calls(syntax)
        return gemma_calls(self._gemma_marks()) if self._name == "gemma" else pythonic_calls

    def _gemma_marks(self) -> gemma.GemmaMarks:
        return next((marks for marks in gemma.MARKS if marks.open in self._template), gemma.MARKS[0])

    def _steps(self, feed: Feed, use: ToolUse, *, opened: bool, continued: bool) -> Steps[None]:
        if self._name == "harmony":
            yield from harmony.harmony(feed, calls=bool(use.tools))
            return
        if self._thinking is not None:
            yield from reasoning(feed, self._thinking, opened=opened, amid=opened and continued)
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
    mark_of: Callable[[str], int | None],
    parser: AnswerFormName = "auto",
    strict_tools: bool = False,
) -> AnswerForm:
    """The form of a model's answers, from the texts of its chat templates."""
    if parser == "none":
        return AnswerForm(reads=reads)
    text = "\n".join(templates.values())
    name = _told(text) if parser == "auto" else parser
    thinking = next((marks for marks in THINKING if marks.close in text), None) if name != "harmony" else None
    return AnswerForm(
        name=name,
        thinking=thinking,
        template=text,
        reads=reads,
        token_of=token_of,
        mark_of=mark_of,
        strict_tools=strict_tools,
    )


def _told(template: str) -> str | None:
    if any(sign in template for sign in _OTHERS):
        return None
    return next((name for name, signs in _SIGNS if all(sign in template for sign in signs)), None)

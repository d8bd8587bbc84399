"""``tidemill chat``: a conversation in the terminal, or line by line from a pipe."""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from tidemill.cli.adapter import first_adapter
from tidemill.cli.default import DEFAULT_MODEL, ModelArgument, explained
from tidemill.cli.models_file import ModelsFileOption, named
from tidemill.cli.options import DebugOption, with_settings
from tidemill.cli.word_wrap import WordWrap
from tidemill.core.config import EngineConfig, ExecutorConfig, ModelConfig, SchedulerConfig
from tidemill.core.errors import ConfigError, InvalidRequest
from tidemill.core.sampling import SamplingOptions

if TYPE_CHECKING:
    from tidemill.llm import Piece

__all__ = ["Conversation", "chat", "converse"]

SystemOption = Annotated[str | None, typer.Option("--system", help="A system message to begin with.")]
_HELP = "/reset forgets the conversation, /exit (or Ctrl-D) ends it, Ctrl-C stops an answer."

_CODES = {"bold": "1", "dim": "2"}

Answer = Callable[[list[dict[str, str]]], "Iterable[Piece]"]
"""Streams the answer to a conversation."""


@with_settings(
    SamplingOptions, ModelConfig, ExecutorConfig, SchedulerConfig, EngineConfig, without=("n", "logprobs", "grammar")
)
def chat(
    model: ModelArgument = DEFAULT_MODEL,
    system: SystemOption = None,
    models_file: ModelsFileOption = None,
    debug: DebugOption = False,  # noqa: ARG001 (read by main)
    **settings: Any,
) -> None:
    """Talk with a model in the terminal; piped input is read line by line. With --lora NAME=PATH, with that adapter."""
    from tidemill.engine.admission import check_generates
    from tidemill.llm import LLM

    model, settings = named(model, settings, models_file)
    names = {item.name for item in dataclasses.fields(SamplingOptions)}
    sampling = SamplingOptions(**{name: value for name, value in settings.items() if name in names})
    with explained(model), LLM(model, **{n: v for n, v in settings.items() if n not in names}) as llm:
        check_generates(llm.info)
        if llm.chat_problem is not None:
            raise ConfigError(
                f"{llm.chat_problem}; give one with --chat-template, or use tidemill generate", param="chat_template"
            )
        interactive = sys.stdin.isatty()
        if interactive:
            with_adapter = f" with {first_adapter(llm)}" if llm.adapters else ""
            print(f"{_painted(llm.info.model + with_adapter, 'bold')}\n{_painted(_HELP, 'dim')}\n")
        converse(
            Conversation(system),
            lambda messages: llm.stream_chat(messages, sampling, lora=first_adapter(llm)),
            lines=_ask() if interactive else (line.rstrip("\n") for line in sys.stdin),
            out=sys.stdout,
            in_terminal=interactive and sys.stdout.isatty(),
        )


class Conversation:
    """The messages so far."""

    def __init__(self, system: str | None = None) -> None:
        self._opening = [{"role": "system", "content": system}] if system else []
        self.messages: list[dict[str, str]] = list(self._opening)

    def reset(self) -> None:
        """Back to the beginning."""
        self.messages = list(self._opening)

    def say(self, role: str, content: str) -> None:
        """Add a message."""
        self.messages.append({"role": role, "content": content})


def converse(
    conversation: Conversation, answer: Answer, *, lines: Iterable[str], out: TextIO, in_terminal: bool = False
) -> None:
    """Answer each line until the lines end or one is /exit. A request that is refused is told and taken back. In a
    terminal answers are broken between words, and an empty line follows each."""
    for line in lines:
        words = line.strip()
        if words == "/exit":
            return
        if words == "/reset":
            conversation.reset()
            print("(the conversation starts anew)", file=out)
        elif words.startswith("/") and len(words.split()) == 1:
            print(f"(there is no {words}: {_HELP})", file=out)
        elif words:
            conversation.say("user", line)
            try:
                conversation.say("assistant", _show(answer(conversation.messages), out, in_terminal=in_terminal))
            except InvalidRequest as error:
                conversation.messages.pop()
                print(f"({error.message})", file=out)


def _show(pieces: Iterable[Piece], out: TextIO, *, in_terminal: bool) -> str:
    """Print an answer as it comes; Ctrl-C ends it there, and what was said stays said."""
    said: list[str] = []
    wrap = WordWrap(out.write, lambda: shutil.get_terminal_size().columns)
    stream = iter(pieces)
    try:
        for piece in stream:
            said.append(piece.text)
            if in_terminal:
                wrap.push(piece.text)
            else:
                out.write(piece.text)
            out.flush()
    except KeyboardInterrupt:
        if isinstance(stream, Iterator) and hasattr(stream, "close"):
            stream.close()
        wrap.flush()
        out.write(" (stopped)")
    wrap.flush()
    out.write("\n\n" if in_terminal else "\n")
    out.flush()
    return "".join(said)


def _painted(text: str, how: str, *, invisible: tuple[str, str] = ("", "")) -> str:
    """Bold or dim text, where colours are wanted; ``invisible``: what readline wants around what has no width."""
    if "NO_COLOR" in os.environ or not sys.stdout.isatty():
        return text
    begin, end = invisible
    return f"{begin}\x1b[{_CODES[how]}m{end}{text}{begin}\x1b[0m{end}"


def _ask() -> Iterator[str]:
    """Lines from the terminal; Ctrl-D ends them, Ctrl-C gives a fresh prompt."""
    import readline  # noqa: F401  (arrow keys and history for input())

    while True:
        try:
            yield input(_painted("> ", "bold", invisible=("\001", "\002")))
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()

"""Functions, calls of them as Hermes writes them, and a toy model whose answers are told apart."""

from __future__ import annotations

from tests.support.toy_text import ToyText
from tidemill.text.answers.form import AnswerForm
from tidemill.text.answers.reasoning import THINKING

__all__ = ["SCHEMA", "TIDE", "WIND", "call", "toy", "toy_with_marks"]

SCHEMA = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
TIDE = {"type": "function", "function": {"name": "tide", "description": "Height.", "parameters": SCHEMA}}
WIND = {"type": "function", "function": {"name": "wind"}}


def call(name: str = "tide", place: str = "Brest") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{"place": "{place}"}}}}\n</tool_call>'


def toy(name: str | None = "hermes", *, thinking: bool = True, reads: tuple[str, ...] = ("tools",)) -> ToyText:
    text = ToyText()
    text.answer_form = AnswerForm(name=name, thinking=THINKING[0] if thinking else None, reads=reads)
    return text


def toy_with_marks(*, reads: tuple[str, ...] = ("tools",)) -> ToyText:
    """Its marks of reasoning are a token each."""
    marks = THINKING[0]
    text = ToyText(pieces=[marks.open, marks.close])
    text.answer_form = AnswerForm(name="hermes", thinking=marks, reads=reads, mark_of=text.id_of)
    return text

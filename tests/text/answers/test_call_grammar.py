"""Grammars of calls over a real vocabulary: whatever a walk within the masks ends in is read back as calls that fit."""

from __future__ import annotations

import json
import random

import jsonschema
import pytest

from tests.text.tiny_text import json_source
from tidemill.core.errors import InvalidRequest
from tidemill.core.mask import allows
from tidemill.core.tools import Tool, ToolUse
from tidemill.text.answers.form import AnswerForm
from tidemill.text.answers.reasoning import THINKING
from tidemill.text.detokenizer import IncrementalDetokenizer
from tidemill.text.grammars import Grammars
from tidemill.text.tokenizer import build_tokenizer

SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}, "unit": {"enum": ["m", "ft"]}},
    "required": ["n", "unit"],
    "additionalProperties": False,
}
TIDE = Tool(name="tide", parameters=SCHEMA, shown={})
NOTHING = Tool(name="now", parameters={"type": "object", "additionalProperties": False}, shown={})
TOKENIZER = build_tokenizer(json_source())


def walk(form: AnswerForm, use: ToolUse, *, opened: bool, seed: int) -> str:
    """A text that random tokens within the masks end in."""
    end = TOKENIZER.token_id("<|im_end|>")
    state = Grammars(lambda: TOKENIZER, TOKENIZER.vocab_size, [end]).state(form.grammar(use, opened=opened))
    detokenizer = IncrementalDetokenizer(TOKENIZER, shown=[TOKENIZER.token_id("<|begin|>")])
    rng, text = random.Random(seed), ""
    for step in range(1000):
        mask = state.mask()
        free = [token for token in range(TOKENIZER.vocab_size) if allows(mask, token)]
        if end in free and (step > 60 or len(free) == 1):
            return text + detokenizer.flush()
        free = [token for token in free if token != end]
        seen = [token for token in free if TOKENIZER.token_bytes(token).strip()]  # white space would fill it
        token = rng.choice(seen if seen and rng.random() < 0.9 else free)
        assert state.consume([token]) == 1
        text += detokenizer.push([token])
    raise AssertionError(f"no end: {text!r}")


@pytest.mark.parametrize("name", ["hermes", "llama3", "mistral", "pythonic", "deepseek", "gemma", "harmony"])
@pytest.mark.parametrize("named", [False, True])
def test_every_answer_within_the_grammar_is_calls_that_fit_their_schemas(name, named):
    form = AnswerForm(name=name, token_of=TOKENIZER.control_token)
    use = ToolUse(tools=(TIDE, NOTHING), choice="required", name="tide" if named else None, parallel=not named)
    for seed in range(4):
        text = walk(form, use, opened=False, seed=seed)
        parser = form.parser(use, opened=False)
        pieces = parser.push(text) + parser.finish()
        calls = [piece.call for piece in pieces if piece.call]
        assert calls, text
        assert "".join(piece.text for piece in pieces) == ""
        assert {call.name for call in calls} <= ({"tide"} if named else {"tide", "now"})
        assert len(calls) == 1 or not named
        for call in calls:
            jsonschema.validate(json.loads(call.arguments), SCHEMA if call.name == "tide" else NOTHING.parameters)


def test_reasoning_that_the_prompt_opened_may_end_before_the_call():
    form = AnswerForm(name="hermes", thinking=THINKING[0], token_of=TOKENIZER.control_token)
    use = ToolUse(tools=(TIDE,), choice="required", name="tide")
    end = TOKENIZER.token_id("<|im_end|>")
    grammars = Grammars(lambda: TOKENIZER, TOKENIZER.vocab_size, [end])
    call = '<tool_call>\n{"name": "tide", "arguments": {"n": 4, "unit": "m"}}\n</tool_call>'
    for answer, taken in ((f"I see.\n</think>\n\n{call}", True), (f"</think>{call}", True), ("</think>Hello", False)):
        ids = TOKENIZER.encode(answer, add_bos=False)
        state = grammars.state(form.grammar(use, opened=True))
        assert (state.consume(ids) == len(ids)) == taken


def test_a_mark_that_is_a_control_token_is_asked_for_as_that_token():
    form = AnswerForm(name="mistral", token_of={"[TOOL_CALLS]": 1}.get)
    use = ToolUse(tools=(TIDE,), choice="required")
    state = Grammars(lambda: TOKENIZER, TOKENIZER.vocab_size, [2]).state(form.grammar(use, opened=False))
    mask = state.mask()
    assert [token for token in range(TOKENIZER.vocab_size) if allows(mask, token)] == [1]


@pytest.mark.parametrize("schema", [{"not": {}}, {"x-guidance": {}}, {"properties": {"a": {"type": "whole"}}}])
def test_a_schema_that_cannot_be_kept_is_refused_by_name(schema):
    form = AnswerForm(name="hermes")
    use = ToolUse(tools=(Tool(name="f", parameters=schema, shown={}),), choice="required")
    with pytest.raises(InvalidRequest) as error:
        Grammars(lambda: TOKENIZER, TOKENIZER.vocab_size, [2]).state(form.grammar(use, opened=False))
    assert error.value.param == "tools"

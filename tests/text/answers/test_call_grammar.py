"""Grammars of calls over a real vocabulary: whatever a walk within the masks ends in is read back as calls that fit."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import jsonschema
import pytest

from tests.text.tiny_text import json_source
from tidemill.core.errors import InvalidRequest
from tidemill.core.grammar import Grammar
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


DEEP = {"$defs": {"knot": {"type": "object", "properties": {"a b": {"type": "array", "uniqueItems": True}}}}}


@pytest.mark.parametrize(
    ("schema", "path", "said"),
    [
        ({"not": {}}, "", "not"),
        ({"x-guidance": {}}, "", "x-guidance"),
        ({"properties": {"a": {"type": "whole"}}}, ".properties.a", "whole"),
        ({"properties": {"a": "text"}}, "", "schema must be an object"),
        ({"properties": {"a": {"$ref": "#/$defs/no"}}}, ".properties.a", "does not exist"),
        ({"properties": {"a": {"anyOf": [{}, {"if": {}}]}}}, ".properties.a.anyOf[1]", '"if"'),
        ({"properties": {"a": {"items": {"pattern": "(?<=a)b"}}}}, ".properties.a.items", "look-around"),
        ({**DEEP, "properties": {"k": {"$ref": "#/$defs/knot"}}}, ".properties.k", "uniqueItems"),
    ],
)
def test_a_schema_that_cannot_be_kept_is_refused_by_function_path_and_keyword(schema, path, said):
    form = AnswerForm(name="hermes")
    right = Tool(name="g", parameters=SCHEMA, shown={}, place="tools[0].function.parameters")
    wrong = Tool(name="f", parameters=schema, shown={}, place="tools[1].function.parameters")
    for use in (
        ToolUse(tools=(right, wrong), choice="required"),
        ToolUse(tools=(right, wrong), choice="required", name="f"),
        ToolUse(tools=(right, replace(wrong, strict=True))),
    ):
        with pytest.raises(InvalidRequest, match=said) as error:
            Grammars(lambda: TOKENIZER, TOKENIZER.vocab_size, [2]).state(form.grammar(use, opened=False))
        assert error.value.param == f"tools[1].function.parameters{path}"
        assert error.value.message.startswith(error.value.param)
        assert "'f'" in error.value.message
        assert "%json" not in error.value.message
        assert "\n" not in error.value.message


def test_strict_false_leaves_the_arguments_of_a_required_call_free():
    free = Tool(name="f", parameters={"not": {}}, shown={}, strict=False)
    use = ToolUse(tools=(TIDE, free), choice="required")
    state = Grammars(lambda: TOKENIZER, TOKENIZER.vocab_size, [2]).state(
        AnswerForm(name="hermes").grammar(use, opened=False)
    )
    ids = TOKENIZER.encode('<tool_call>\n{"name": "f", "arguments": {"anything": [1]}}\n</tool_call>', add_bos=False)
    assert state.consume(ids) == len(ids)


ANSWERS = {
    "json": (Grammar.json_schema(SCHEMA, name="response_format"), '{"n": 4, "unit": "m"}', '{"n": 4, "unit": "in"}'),
    "object": (Grammar.json_object(name="response_format"), '{"name": "tide", "x": 1}', "[1]"),
    "choice": (Grammar.choice(["yes", "no"], name="guided_choice"), "yes", "maybe"),
    "regex": (Grammar.regex("[ab]{3}", name="guided_regex"), "aba", "abc"),
    "lark": (Grammar.lark('start: "x" | "(" start ")"', name="grammar"), "((x))", "((y))"),
}


@pytest.mark.parametrize("kind", ANSWERS)
@pytest.mark.parametrize("name", ["hermes", "llama3", "mistral", "pythonic", "deepseek", "gemma", "harmony"])
def test_an_answer_is_either_a_call_or_what_it_has_to_be(name, kind):
    form = AnswerForm(name=name, token_of=TOKENIZER.control_token)
    answer, right, wrong = ANSWERS[kind]
    end = TOKENIZER.token_id("<|im_end|>")
    grammars = Grammars(lambda: TOKENIZER, TOKENIZER.vocab_size, [end])
    use = ToolUse(tools=(TIDE, NOTHING))
    bad = "Hello" if (name, kind) == ("llama3", "object") else BAD_CALLS[name]  # there it is an object like others
    for text, taken in ((right, True), (wrong, False), ("Hello", False), (CALLS[name], True), (bad, False)):
        state = grammars.state(form.grammar(use, opened=False, answer=answer))
        ids = TOKENIZER.encode(text, add_bos=False)
        done = state.consume(ids) == len(ids) and (state.over or allows(state.mask(), end))
        assert done == taken, text
        if text == CALLS[name]:
            parser = form.parser(use, opened=False)
            calls = [piece.call for piece in parser.push(text) + parser.finish() if piece.call]
            assert [(call.name, json.loads(call.arguments)) for call in calls] == [("tide", {"n": 4, "unit": "m"})]


CALLS = {
    "hermes": '<tool_call>\n{"name": "tide", "arguments": {"n": 4, "unit": "m"}}\n</tool_call>',
    "llama3": '{"name": "tide", "parameters": {"n": 4, "unit": "m"}}',
    "mistral": '[TOOL_CALLS] [{"name": "tide", "arguments": {"n": 4, "unit": "m"}}]',
    "pythonic": "[tide(n=4, unit='m')]",
    "deepseek": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>tide<｜tool▁sep｜>"
    '{"n": 4, "unit": "m"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "gemma": "<start_function_call>call:tide{n:4,unit:<escape>m<escape>}<end_function_call>",
    "harmony": '<|channel|>commentary to=functions.tide <|constrain|>json<|message|>{"n": 4, "unit": "m"}',
}
BAD_CALLS = {name: call.replace("4", '"4"') for name, call in CALLS.items()}


def test_what_is_wrong_with_the_other_answer_is_said_of_its_own_field():
    use = ToolUse(tools=(TIDE,))
    for answer, param in (
        (Grammar.json_schema({"properties": {"a": {"not": {}}}}, name="response_format"), ".properties.a"),
        (Grammar.regex("a(", name="guided_regex"), ""),
        (Grammar.lark('start: "a" b', name="grammar"), ""),
    ):
        with pytest.raises(InvalidRequest) as error:
            Grammars(lambda: TOKENIZER, TOKENIZER.vocab_size, [2]).state(
                AnswerForm(name="hermes").grammar(use, opened=False, answer=answer)
            )
        assert error.value.param == answer.name + param

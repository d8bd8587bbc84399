"""A real vocabulary: control tokens that are marks are seen by whoever reads the answer, and others stay hidden."""

from __future__ import annotations

import pytest

from tests.text.tiny_text import json_source
from tidemill.core.reasoning import ReasoningBudget
from tidemill.core.tools import NO_TOOLS, Tool, ToolUse
from tidemill.frontend.model_text import ModelText
from tidemill.frontend.text import prompt_end

TEMPLATES = {
    "hermes": "{% if tools %}<tool_call>{% endif %}",
    "harmony": "<|channel|>analysis<|message|>{{ tools }}{{ reasoning_effort }}",
    "mistral": "{% for t in tools %}[AVAILABLE_TOOLS]{% endfor %}[TOOL_CALLS]",
    "llama3": '{{ tools }}Respond as {"name": function name, "parameters": dictionary of argument name and its value}.',
    "pythonic": "{{ tools }}[func_name1(params_name1=params_value1)]",
    "deepseek": "{{ tools }}<｜tool▁call▁begin｜>",
    "gemma": "{{ tools }}<start_function_call>",
}
USE = ToolUse(tools=(Tool(name="f", shown={}),))


def _text(template: str, **options: str) -> ModelText:
    return ModelText.from_source(json_source(chat_templates={"default": template}), **options)


@pytest.mark.parametrize(("name", "template"), TEMPLATES.items())
def test_the_template_tells_the_format(name, template):
    form = _text(template).answer_form
    form.check_tools()
    assert form._name == name
    assert form.reads("reasoning_effort") == (name == "harmony")
    assert form.parser(USE, opened=False) is not None
    assert _text(template, answer_parser="none").answer_form.parser(USE, opened=False) is None
    assert _text("{{ tools }}", answer_parser=name).answer_form._name == name


@pytest.mark.parametrize("sign", ["<function=f>", "<arg_key>"])
def test_formats_that_only_look_like_a_known_one_are_not_taken_for_it(sign):
    form = _text("{{ tools }}<tool_call>" + sign).answer_form
    with pytest.raises(Exception, match="answer_parser"):
        form.check_tools()


def test_marks_that_are_control_tokens_are_shown_and_others_are_not():
    text = _text("x")
    ids = text.encode_chat([{"role": "user", "content": "x"}], {})
    del ids
    begin, end = (text._tokenizer.token_id(name) for name in ("<|begin|>", "<|im_end|>"))
    ids = [begin, *text.encode("a", bare=True), end]
    assert text.detokenizer().push(ids) == "a"
    assert text.detokenizer(("<|im_end|>",)).push(ids) == "a<|im_end|>"
    assert prompt_end(ids, text, ("<|begin|>",)) == "<|begin|>a"


def test_reasoning_is_known_from_the_template_and_whether_the_prompt_opened_it():
    form = _text("{{ messages }}</think>").answer_form
    assert form.opened("user\n<think>\n")
    assert not form.opened("<think>\n\n</think>\n\n")
    assert form.parser(NO_TOOLS, opened=False) is not None
    assert _text("{{ messages }}").answer_form.parser(NO_TOOLS, opened=False) is None


def test_a_budget_takes_the_tokens_that_the_marks_are():
    text = _text("{{ messages }}</think>{{ enable_thinking }}")
    form = text.answer_form
    begin, *_, end = text._tokenizer.encode_markup("<think>Hm, well.</think>")
    assert form.budget(5, opened=True) == ReasoningBudget(tokens=5, open=begin, close=end, opened=True)
    assert text.detokenizer(form.marks(NO_TOOLS)).push([begin, end]) == "<think></think>"
    assert (form.switch, form.reasons) == ("enable_thinking", True)


def test_marks_of_several_tokens_have_no_budget():
    form = _text("{{ messages }}[THINK][/THINK]").answer_form
    assert form.reasons
    assert (form.switch, form.budget(5, opened=True)) == (None, None)

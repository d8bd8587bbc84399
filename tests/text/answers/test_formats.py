"""Each format as its documentation writes it, whole and cut anywhere; damaged calls are given back."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.core.tools import NO_TOOLS, Tool, ToolUse
from tidemill.text.answers.form import AnswerForm
from tidemill.text.answers.pieces import Kind
from tidemill.text.answers.reasoning import THINKING

TOOLS = ToolUse(tools=(Tool(name="get_weather", shown={}),))
THINK = THINKING[0]

Calls = list[tuple[str, object]]


def read(form: AnswerForm, chunks, use=TOOLS, *, opened=False) -> tuple[str, str, Calls]:
    """Reasoning, content and calls of an answer that comes in chunks."""
    parser = form.parser(use, opened=opened)
    assert parser is not None
    pieces = []
    for chunk in chunks:
        pieces += parser.push(chunk)
        if parser.done:
            break
    pieces += parser.finish()
    whole = "".join(chunks)
    for piece in pieces:
        assert piece.call is not None or whole[piece.start : piece.start + len(piece.text)] == piece.text
    joined = {
        kind: "".join(piece.text for piece in pieces if piece.kind is kind) for kind in (Kind.REASONING, Kind.CONTENT)
    }
    calls = [(piece.call.name, json.loads(piece.call.arguments)) for piece in pieces if piece.call is not None]
    return joined[Kind.REASONING], joined[Kind.CONTENT], calls


PARIS = ("get_weather", {"city": "Paris"})
ROME = ("get_weather", {"city": "Rome"})
HERMES = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
HERMES_2 = HERMES.replace("Paris", "Rome")
DEEPSEEK = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
    '{"city": "Paris"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
)
OLD_DEEPSEEK = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
    '{"city": "Paris"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n'
    '{"city": "Rome"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
)
ANALYSIS = "<|channel|>analysis<|message|>The user asks for the weather.<|end|><|start|>assistant"
GOLDEN = [
    ("hermes", HERMES, "", "", [PARIS]),
    ("hermes", f"Let me look.\n{HERMES}", "", "Let me look.\n", [PARIS]),
    ("hermes", f"{HERMES}\n{HERMES_2}\n", "", "", [PARIS, ROME]),
    ("hermes", '<tool_call>{"name": "f"}</tool_call>', "", "", [("f", {})]),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", "", [("f", {"a": 1})]),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>}"}}</tool_call>',
        "",
        "",
        [("f", {"a": "</tool_call>}"})],
    ),
    ("hermes", "It is < 5 <tool degrees.", "", "It is < 5 <tool degrees.", []),
    ("hermes", f"<think>\nHm.\n</think>\n\n{HERMES}", "Hm.", "", [PARIS]),
    ("hermes", "<think>\n\n</think>\n\nWarm.", "", "Warm.", []),
    ("hermes", " \n", "", " \n", []),
    ("llama3", '{"name": "get_weather", "parameters": {"city": "Paris"}}', "", "", [PARIS]),
    ("llama3", '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}', "", "", [PARIS]),
    (
        "llama3",
        '{"name": "get_weather", "parameters": {"city": "Paris"}}; {"name": "get_weather", "parameters": '
        '{"city": "Rome"}}',
        "",
        "",
        [PARIS, ROME],
    ),
    ("llama3", '{"name": "Ada", "age": 36}', "", '{"name": "Ada", "age": 36}', []),
    ("llama3", "<|python_tag|>print(1)", "", "<|python_tag|>print(1)", []),
    ("mistral", '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}}]', "", "", [PARIS]),
    (
        "mistral",
        'Both.[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]get_weather[CALL_ID]123456789[ARGS]'
        '{"city": "Rome"}',
        "",
        "Both.",
        [PARIS, ROME],
    ),
    ("pythonic", "[get_weather(city='Paris'), get_weather(city=\"Rome\")]", "", "", [PARIS, ROME]),
    (
        "pythonic",
        "<|python_start|>[f(a=[1, -2.5, True], b={'c': None}, d='it\\'s')]<|python_end|>",
        "",
        "",
        [("f", {"a": [1, -2.5, True], "b": {"c": None}, "d": "it's"})],
    ),
    ("pythonic", "[1, 2] are numbers", "", "[1, 2] are numbers", []),
    ("deepseek", DEEPSEEK, "", "", [PARIS]),
    ("deepseek", f"I look.{OLD_DEEPSEEK}", "", "I look.", [PARIS, ROME]),
    (
        "gemma",
        "<start_function_call>call:get_weather{city:<escape>Paris<escape>}<end_function_call>",
        "",
        "",
        [PARIS],
    ),
    (
        "gemma",
        '<|tool_call>call:f{a:<|"|>x, "y"<|"|>,b:[1,2.5,true],c:{d:null}}<tool_call|>',
        "",
        "",
        [("f", {"a": 'x, "y"', "b": [1, 2.5, True], "c": {"d": None}})],
    ),
    (
        "harmony",
        f"{ANALYSIS}<|channel|>final<|message|>It is warm.",
        "The user asks for the weather.",
        "It is warm.",
        [],
    ),
    (
        "harmony",
        f'{ANALYSIS}<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{{"city": "Paris"}}',
        "The user asks for the weather.",
        "",
        [PARIS],
    ),
    (
        "harmony",
        '<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>{"city":"Paris"}<|call|>',
        "",
        "",
        [PARIS],
    ),
    ("harmony", "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant", "", "I look.", []),
    ("harmony", "no channels", "", "no channels", []),
]
DAMAGED = [
    ("hermes", '<tool_call>\n{"name": "get_weather", "arguments": {"ci'),
    ("hermes", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>'),
    ("hermes", "<tool_call>f()</tool_call> and more"),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>'),
    ("llama3", '{"name": "f", "parameters": {"a": 1'),
    ("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"name": 3}]'),
    ("mistral", "[TOOL_CALLS]f[ARGS]none"),
    ("pythonic", "[f(a=1), g(b)]"),
    ("pythonic", "[f(a=1"),
    ("deepseek", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"),
    ("gemma", "<start_function_call>call:f{a:<escape>x}<end_function_call>"),
    ("gemma", "<start_function_call>call:f{a:" + "[" * 5000 + "<end_function_call>"),
    ("harmony", "<|channel|>commentary to=functions.f<|message|>{oops"),
    ("hermes", "<tool_call>" + '{"name": "f", "arguments": ' + '{"a":' * 5000 + "1" + "}" * 5001 + "</tool_call>"),
]


def form_of(name: str) -> AnswerForm:
    return AnswerForm(name=name, thinking=None if name == "harmony" else THINK)


@pytest.mark.parametrize(("name", "text", "reasoning", "content", "calls"), GOLDEN)
def test_a_format_is_read_whole_and_character_by_character(name, text, reasoning, content, calls):
    for chunks in ([text], list(text)):
        assert read(form_of(name), chunks) == (reasoning, content, calls)


@pytest.mark.parametrize(("name", "text"), DAMAGED)
def test_a_damaged_call_is_content_and_nothing_of_it_is_lost(name, text):
    for chunks in ([text], list(text)):
        assert read(form_of(name), chunks) == ("", text, [])


FRAGMENTS = sorted(
    {text for _, text, *_ in GOLDEN}
    | {text for _, text in DAMAGED if len(text) < 100}
    | {" ", "\n", "{", "}", "[", '"', "'", "<", "<tool_call>", "</tool_call>", "<think>", "</think>", "x", "\\", ";"}
    | {"<|start|>", "<|end|>", "<|channel|>", "<|message|>", "[TOOL_CALLS]", "[ARGS]", "<｜tool▁call▁begin｜>"}
)


@st.composite
def cut_texts(draw) -> list[str]:
    """A text of fragments in chunks of random sizes."""
    text = "".join(draw(st.lists(st.sampled_from(FRAGMENTS), max_size=5)))
    text = text[: draw(st.integers(1, 400))]
    chunks = []
    while text:
        size = draw(st.integers(1, 9))
        chunks.append(text[:size])
        text = text[size:]
    return chunks


@settings(max_examples=200, deadline=None)
@given(
    name=st.sampled_from(["hermes", "llama3", "mistral", "pythonic", "deepseek", "gemma", "harmony"]),
    chunks=cut_texts(),
    opened=st.booleans(),
    parallel=st.booleans(),
)
def test_how_a_text_is_cut_changes_nothing(name, chunks, opened, parallel):
    use = ToolUse(tools=TOOLS.tools, parallel=parallel)
    form = form_of(name)
    whole = read(form, ["".join(chunks)], use, opened=opened)
    assert read(form, chunks, use, opened=opened) == whole
    assert parallel or len(whole[2]) <= 1


def test_reasoning_that_the_prompt_opened_and_that_never_ends():
    form = form_of("hermes")
    assert form.opened("<|im_start|>assistant\n<think>\n")
    assert not form.opened("<think>\n\n</think>\n\n")
    assert read(form, ["I see.\n</think>\n\nYes."], opened=True) == ("I see.", "Yes.", [])
    assert read(form, [f"I see. {HERMES} "], opened=True) == (f"I see. {HERMES}", "", [])


def test_without_tools_calls_are_text_and_reasoning_is_still_told_apart():
    assert read(form_of("hermes"), [f"<think>a</think> b {HERMES}"], NO_TOOLS) == ("a", f"b {HERMES}", [])
    assert AnswerForm(name="hermes").parser(NO_TOOLS, opened=False) is None
    call = '<|channel|>commentary to=functions.f<|message|>{"a": 1}'
    assert read(form_of("harmony"), [call], NO_TOOLS) == ("", '{"a": 1}', [])


def test_what_follows_the_one_call_that_may_be_is_not_read():
    use = ToolUse(tools=TOOLS.tools, parallel=False)
    assert read(form_of("hermes"), [HERMES, "\n", HERMES_2], use) == ("", "", [PARIS])


@pytest.mark.parametrize(("name", "begin"), [("hermes", "<tool_call>{"), ("llama3", "{"), ("mistral", "[TOOL_CALLS][")])
def test_the_work_is_linear_in_the_text(name, begin):
    """Ten times the text is about ten times the work; it would be a hundred times if held text were read again."""

    def seconds(count: int) -> float:
        best = []
        for _ in range(3):
            start = time.process_time()
            read(form_of(name), [begin, *['"a": "bc", '] * count])
            best.append(time.process_time() - start)
        return min(best)

    assert seconds(20_000) < 40 * seconds(2_000)

"""Calls that a model opens itself: their arguments fit the schema; text before and behind is free."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import jsonschema
import pytest

from tests.text.tiny_text import json_source
from tidemill.core.errors import UnsupportedParameter
from tidemill.core.mask import allows
from tidemill.core.tools import Tool, ToolUse
from tidemill.text.answers.form import AnswerForm
from tidemill.text.answers.reasoning import THINKING
from tidemill.text.grammars import Grammars
from tidemill.text.tokenizer import build_tokenizer

SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": "integer", "minimum": 0, "maximum": 99},
        "unit": {"enum": ["m", "ft"]},
        "exact": {"type": "boolean"},
        "place": {"type": "string"},
        "days": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["n", "unit"],
    "additionalProperties": False,
}
TIDE = Tool(name="tide", parameters=SCHEMA, shown={}, strict=True)
FREE = Tool(name="tide_now", parameters=SCHEMA, shown={}, strict=False)
USE = ToolUse(tools=(TIDE, FREE))
TOKENIZER = build_tokenizer(json_source())
END, BEGIN = TOKENIZER.token_id("<|im_end|>"), TOKENIZER.token_id("<|begin|>")
GRAMMARS = Grammars(lambda: TOKENIZER, TOKENIZER.vocab_size, [END])

OLDER_DEEPSEEK = "function<｜tool▁sep｜>NAME\n```json\n"
FORMATS = {
    # name of the format, its template, what opens a call, what closes it
    "hermes": ("hermes", "", '<tool_call>\n{"name": "NAME", "arguments": ', "}\n</tool_call>"),
    "llama3": ("llama3", "", '{"name": "NAME", "parameters": ', "}"),
    "mistral": ("mistral", "", '[TOOL_CALLS] [{"name": "NAME", "arguments": ', "}]"),
    "newer mistral": ("mistral", "[ARGS]", "[TOOL_CALLS]NAME[ARGS]", ""),
    "pythonic": ("pythonic", "", "[NAME(", ")]"),
    "deepseek": ("deepseek", "", "<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
    "older deepseek": ("deepseek", "```json", f"<｜tool▁call▁begin｜>{OLDER_DEEPSEEK}", "\n```<｜tool▁call▁end｜>"),
    "gemma": ("gemma", "", "<start_function_call>call:NAME{", "}<end_function_call>"),
    "gemma 4": ("gemma", "<|tool_call>", "<|tool_call>call:NAME{", "}<tool_call|>"),
    "harmony": ("harmony", "", "<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>", ""),
}
WRITTEN = {
    # arguments as the format writes them: right, and up to the first character that is wrong
    "pythonic": ("n=4, unit='m', exact=True", 'n=40, unit="', "in"),
    "gemma": ("n:4,unit:<escape>m<escape>,exact:true", "n:4,unit:<escape>", "in"),
    "gemma 4": ('n:4,unit:<|"|>m<|"|>,place:<|"|>Brest<|"|>', 'n:4,unit:<|"|>', "in"),
}
JSON = ('{"n": 4, "unit": "m"}', '{"n": 4, "unit": "', "in")


def form_of(name: str, **options) -> AnswerForm:
    kind, template, *_ = FORMATS[name]
    return AnswerForm(name=kind, template=template, token_of=TOKENIZER.control_token, **options)


def opening(name: str, tool: str = "tide") -> str:
    return FORMATS[name][2].replace("NAME", tool)


def start(form: AnswerForm, use: ToolUse = USE, *, opened: bool = False):
    return GRAMMARS.state(form.grammar(use, opened=opened))


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_bos=False)


def takes(state, *parts: str | int) -> bool:
    tokens = [token for part in parts for token in ([part] if isinstance(part, int) else ids(part))]
    return state.consume(tokens) == len(tokens)


def ends(state) -> bool:
    return allows(state.mask(), END)


@pytest.mark.parametrize("name", FORMATS)
def test_a_call_that_the_model_opens_is_kept_to_the_schema(name):
    right, before, wrong = WRITTEN.get(name, JSON)
    state = start(form_of(name))
    assert takes(state, opening(name), right, FORMATS[name][3])
    assert ends(state)
    state = start(form_of(name))
    assert takes(state, opening(name), before)
    assert not ends(state)
    assert not takes(state, wrong)
    assert takes(state, "ft")


@pytest.mark.parametrize("name", FORMATS)
def test_text_is_free_and_may_end_anywhere(name):
    for parts in (
        ("The tide comes.\n\n<b>[1] {x} 🌊",),
        ("Hello", BEGIN, "you"),
        ('{"name": "Ada", "age": 36}',),
        ("[1, 2]",),
        ("<think>no mark of this model</think>",),
        (" ",),
    ):
        state = start(form_of(name))
        assert ends(state)
        assert takes(state, *parts), parts
        assert ends(state), parts


@pytest.mark.parametrize("name", FORMATS)
def test_a_function_that_is_not_strict_is_free(name):
    loose = {"pythonic": "k=[1, 'two'], n='many'", "gemma": "k:[1,{a:2}],n:<escape>x<escape>"}.get(
        name, 'k:[1],n:<|"|>x<|"|>' if name == "gemma 4" else '{"n": "many", "k": [1]}'
    )
    state = start(form_of(name))
    assert takes(state, opening(name, "tide_now"), loose, FORMATS[name][3])
    assert ends(state)
    assert form_of(name).grammar(ToolUse(tools=(FREE,)), opened=False) is None


@pytest.mark.parametrize("name", FORMATS)
def test_what_a_walk_from_an_open_call_ends_in_is_read_back_as_calls_that_fit(name):
    form = form_of(name)
    for seed in range(3):
        state, text = start(form), opening(name)
        assert takes(state, text)
        text += walk(state, seed)
        parser = form.parser(USE, opened=False)
        pieces = parser.push(text) + parser.finish()
        calls = [piece.call for piece in pieces if piece.call]
        assert calls, text
        assert calls[0].name == "tide"
        for call in calls:
            if call.name == "tide":
                jsonschema.validate(json.loads(call.arguments), SCHEMA)


def walk(state, seed: int) -> str:
    rng, tokens = random.Random(seed), []
    while not ends(state):
        mask = state.mask()
        free = [token for token in range(TOKENIZER.vocab_size) if allows(mask, token)]
        seen = [t for t in free if TOKENIZER.token_bytes(t).strip() and TOKENIZER.token_bytes(t).isascii()]
        closing = [t for t in seen if TOKENIZER.token_bytes(t)[:1] in b"\"'}])<`"]
        hurried = len(tokens) > 60
        token = rng.choice(closing if hurried and closing and rng.random() < 0.8 else seen or free)
        assert state.consume([token]) == 1
        tokens.append(token)
        assert len(tokens) < 1000
    return b"".join(map(TOKENIZER.token_bytes, tokens)).decode()


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in ("llama3", "pythonic", "harmony")])
def test_calls_stand_among_text_and_one_behind_another(name):
    call = opening(name) + WRITTEN.get(name, JSON)[0] + FORMATS[name][3]
    state = start(form_of(name))
    assert takes(state, f"Let me see. {call} And {call}")
    assert ends(state)
    assert not takes(start(form_of(name)), f"See: {call} {opening(name)}", *WRITTEN.get(name, JSON)[1:])


def test_calls_of_llama3_may_have_the_tag_and_semicolons():
    call = opening("llama3") + JSON[0] + "}"
    for before in ("<|python_tag|>", "\n<|python_tag|> ", f"{call}; ", f"<|python_tag|>{call};\n"):
        assert takes(start(form_of("llama3")), before + call), before
        assert not takes(start(form_of("llama3")), before + opening("llama3") + "".join(JSON[1:])), before
    state = start(form_of("llama3"))
    assert takes(state, "So: " + opening("llama3") + "".join(JSON[1:]))  # read as text
    tagged = AnswerForm(name="llama3", token_of={"<|python_tag|>": BEGIN}.get)
    assert takes(start(tagged), BEGIN, opening("llama3") + JSON[0])
    assert not takes(start(tagged), BEGIN, opening("llama3") + "".join(JSON[1:]))
    assert takes(start(tagged), BEGIN, "search(1)")


@pytest.mark.parametrize("name", ["llama3", "pythonic"])
def test_a_hidden_control_token_before_a_call_changes_nothing(name):
    right, before, wrong = WRITTEN.get(name, JSON)
    assert takes(start(form_of(name)), BEGIN, opening(name), right, FORMATS[name][3])
    assert not takes(start(form_of(name)), BEGIN, opening(name), before, wrong)
    assert takes(start(form_of(name)), BEGIN, "So: ", opening(name), before, wrong)


def test_lists_of_python_may_have_several_calls():
    state = start(form_of("pythonic"))
    assert takes(state, "[tide(n=1, unit='m'), tide_now(), tide(n=2, unit=\"ft\", days=[1])]")
    assert ends(state)
    assert not takes(start(form_of("pythonic")), "[tide_now(a=1), tide(n=2, unit='in")


def test_messages_of_harmony_come_in_any_channel():
    channels = "<|channel|>analysis<|message|>to=functions.tide? No.<|end|><|start|>assistant"
    call = "<|channel|>commentary to=functions.tide <|constrain|>json<|message|>"
    other = " to=functions.tide<|channel|>commentary json<|message|>"
    for before in (channels + call, channels + other, f"{channels}{call}{JSON[0]}<|call|><|start|>assistant{call}"):
        assert takes(start(form_of("harmony")), before + JSON[0]), before
        assert not takes(start(form_of("harmony")), before + "".join(JSON[1:])), before
    assert takes(start(form_of("harmony")), channels + "<|channel|>final<|message|>4 m.<|return|>")


@pytest.mark.parametrize("name", ["hermes", "llama3", "pythonic"])
@pytest.mark.parametrize("opened", [False, True])
def test_marks_within_a_thought_open_nothing(name, opened):
    form = form_of(name, thinking=THINKING[0])
    right, before, wrong = WRITTEN.get(name, JSON)
    thought = ("" if opened else "\n<think>") + f"Shall I say {opening(name)} or not"
    state = start(form, opened=opened)
    assert takes(state, thought, BEGIN, " so")
    assert ends(state)
    assert takes(state, BEGIN, f" {opening(name)}?</think>\n\n", opening(name), right, FORMATS[name][3])
    assert ends(state)
    state = start(form, opened=opened)
    assert takes(state, thought, "</think>", opening(name), before)
    assert not takes(state, wrong)
    if not opened:
        state = start(form)
        assert takes(state, opening(name), before)
        assert not takes(state, wrong)


def test_a_mark_that_is_a_control_token_opens_a_call_and_so_does_its_text():
    form = AnswerForm(name="hermes", token_of={"<tool_call>": BEGIN}.get)
    rest = opening("hermes").removeprefix("<tool_call>")
    for mark in (BEGIN, "<tool_call>"):
        assert takes(start(form), "Hm. ", mark, rest, JSON[0])
        assert not takes(start(form), "Hm. ", mark, rest, *JSON[1:])


def test_the_setting_decides_for_functions_that_do_not_say():
    use = ToolUse(tools=(replace(TIDE, strict=None),))
    assert form_of("hermes").grammar(use, opened=False) is None
    state = start(form_of("hermes", strict_tools=True), use)
    assert not takes(state, opening("hermes"), *JSON[1:])
    assert form_of("hermes", strict_tools=True).grammar(ToolUse(tools=(FREE,)), opened=False) is None


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"properties": {"a": {"type": "string"}}, "minProperties": 1}, ".minProperties"),
        ({"properties": {"a": {"type": "string"}}, "required": ["b"]}, ".required"),
    ],
)
def test_arguments_by_name_that_cannot_be_kept_are_refused_by_keyword(schema, path):
    tool = Tool(name="f", parameters=schema, shown={}, strict=True, place="tools[1].function.parameters")
    with pytest.raises(UnsupportedParameter, match="'f'") as refused:
        form_of("pythonic").grammar(ToolUse(tools=(tool,)), opened=False)
    assert refused.value.param == f"tools[1].function.parameters{path}"

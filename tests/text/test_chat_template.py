"""Templates render as in transformers, choose rightly, refuse in one line, and cannot hang or fill memory."""

from __future__ import annotations

import time
import tracemalloc
from datetime import UTC, datetime
from typing import Any

import pytest

from tidemill.core.clock import ManualClock
from tidemill.core.errors import InvalidRequest, TemplateRejected
from tidemill.text.chat_template import ChatTemplate
from tidemill.text.template_sandbox import TemplateEnvironment

HI = [{"role": "user", "content": "<hi> & 'you'"}]


def render(source: str, messages: Any = HI, **given: Any) -> str:
    return ChatTemplate({"default": source}, special_tokens={"bos_token": "<s>"}).render(messages, **given)


def test_blocks_leave_no_blank_lines() -> None:
    source = "{% for m in messages %}\n    {% if true %}\n{{ m.role }}\n    {% endif %}\n{% endfor %}\nend"
    assert render(source) == "user\nend"


def test_variables_a_template_may_expect() -> None:
    assert render("{{ bos_token }}{{ add_generation_prompt }}{{ tools is none }}{{ documents }}") == "<s>TrueTrueNone"
    assert render("{{ add_generation_prompt }}", options={"add_generation_prompt": False}) == "False"
    assert render("{{ enable_thinking }}|{{ nothing }}", options={"enable_thinking": 1}) == "1|"


def test_json_is_not_escaped_for_html() -> None:
    assert render("{{ messages[0].content | tojson }}") == "\"<hi> & 'you'\""
    assert render("{{ {'k': 'é'} | tojson(indent=2) }}") == '{\n  "k": "é"\n}'


def test_loop_controls_generation_blocks_and_namespaces() -> None:
    assert render("{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "012"
    assert render("a{% generation %}b{% for m in messages %}c{% endfor %}{% endgeneration %}d") == "abcd"
    counting = "{% for m in messages %}{% set n.x = n.x + 1 %}{% endfor %}{{ n.x }}"
    assert render("{% set n = namespace(x=1) %}" + counting) == "2"
    adding = "{% for i in range(3) %}{% set n.l = n.l + [i] %}{% endfor %}{{ n.l }}"
    assert render("{% set n = namespace(l=[]) %}" + adding) == "[0, 1, 2]"
    assert render("{% macro f(x) %}[{{ x }}]{% endmacro %}{{ f(1) ~ f('b') }}") == "[1][b]"
    assert render("{{ dict(a=1).a }}{{ ['b', 'a'] | sort | join('-') }}{{ 'abc'[::-1] }}") == "1a-bcba"


def test_formats_print_what_they_always_print() -> None:
    assert render("{{ '%s-%02d' % ('x', 7) }}{{ '{}'.format(3) }}{{ 'a,b'.split(',') | last }}") == "x-073b"
    assert render("{{ '2024: %d%%, %.1f' % (123456, 5) }}") == "2024: 123456%, 5.0"
    assert render("{{ 'in 2024: {:>6}'.format(98765) }}{{ '%s' | format(123456) }}") == "in 2024:  98765123456"
    assert render("{{ 1722000000.5 | round(1) }}{{ 'a\nb' | indent(2) }}") == "1722000000.5a\n  b"


def test_the_date_comes_from_the_clock_given() -> None:
    environment = TemplateEnvironment(today=lambda: datetime(2024, 7, 26, tzinfo=UTC))
    template = ChatTemplate({"default": "{{ strftime_now('%d %b %Y') }}"}, special_tokens={}, environment=environment)
    assert template.render(HI) == "26 Jul 2024"


def test_tool_use_is_chosen_where_tools_are_given() -> None:
    both = ChatTemplate({"default": "plain", "tool_use": "{{ tools | length }}"}, special_tokens={})
    assert both.render(HI) == "plain"
    assert both.render(HI, tools=[]) == "plain"
    assert both.render(HI, tools=[{"a": 1}]) == "1"
    assert render("{{ tools[0].a }}", tools=[{"a": 1}]) == "1"


def test_no_template_is_a_clear_refusal_and_never_a_guess() -> None:
    template = ChatTemplate({}, special_tokens={})
    assert template.problem == "the model has no chat template"
    with pytest.raises(InvalidRequest, match="the model has no chat template: ask for a completion"):
        template.render(HI)
    with pytest.raises(InvalidRequest, match="no chat template named 'default', only rag"):
        ChatTemplate({"rag": "x"}, special_tokens={}).render(HI)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('no\nsystem   role') }}", "the chat template refused the messages: no system role"),
        ("{{ messages[0].nothing.deeper }}", "the chat template failed: 'dict object' has no attribute 'nothing'"),
        ("{{ 1 / 0 }}", "the chat template failed: division by zero"),
        ("{{ 'a' + 1 }}", "the chat template failed: can only concatenate str"),
        ("{{ ''.__class__.__mro__ }}", "the chat template failed: access to attribute '__class__'"),
        ("{{ messages.append(1) }}", "the chat template failed: "),
        ("{% include 'x' %}", "the chat template failed: "),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "the chat template nests too deep"),
        ("{{ x.y }", "the chat template 'default' has a syntax error in line 1: "),
        ("\n\n{% for %}", "the chat template 'default' has a syntax error in line 3: "),
        ("{{ x | nofilter }}", "the chat template 'default' has a syntax error in line 1: No filter named 'nofilter'"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "the chat template 'default' cannot be compiled: "),
    ],
)
def test_whatever_goes_wrong_is_the_requests_fault_in_one_line(source: str, message: str) -> None:
    with pytest.raises(TemplateRejected) as refused:
        render(source)
    assert refused.value.message.startswith(message)
    assert refused.value.status == 400
    assert "\n" not in refused.value.message
    assert len(refused.value.message) < 700


def test_a_broken_template_is_told_when_built() -> None:
    template = ChatTemplate({"default": "{% if %}"}, special_tokens={})
    assert template.problem is not None
    assert "syntax error in line 1" in template.problem
    assert ChatTemplate({"default": "x"}, special_tokens={}).problem is None


@pytest.mark.parametrize("name", ["messages", "tools", "bos_token"])
def test_options_cannot_replace_what_is_not_the_callers(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"'{name}' cannot be set"):
        render("x", options={name: "y"})


def repeated(start: str, step: str, after: str = "") -> str:
    """A template that does a step 99 times, on a variable that outlives the loop's body."""
    return "{% set n = namespace(x=" + start + ") %}{% for a in range(99) %}" + step + "{% endfor %}" + after


def many(made: str) -> str:
    """A template that keeps 99 values, without a loop."""
    return "".join(f"{{% set x{i} = {made} %}}" for i in range(99))


LONG = "{% set s = 'a' * 3333333 %}"

HOSTILE = {
    "endless rounds": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "endless output": "{% for a in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
    "endless constant": "{% for a in range(99999) %}" + "x" * 1000 + "{% endfor %}",
    "doubling by ~": repeated("'xx'", "{% set n.x = n.x ~ n.x %}"),
    "doubling by +": repeated("'xx'", "{% set n.x = n.x + n.x %}"),
    "doubling by capture": repeated("'xx'", "{% set y %}{{ n.x }}{{ n.x }}{% endset %}{% set n.x = y %}"),
    "doubling by macro": "{% macro d(x) %}{{ x }}{{ x }}{% endmacro %}" + repeated("'xx'", "{% set n.x = d(n.x) %}"),
    "doubling lists": repeated("[1]", "{% set n.x = n.x + n.x %}"),
    "nesting lists": repeated("[1]", "{% set n.x = [n.x, n.x] %}", "{{ n.x }}"),
    "nesting objects": repeated("1", "{% set n.x = dict(a=n.x, b=n.x) %}", "{{ n.x | tojson }}"),
    "comparing nests": "{% set m = namespace(x=[1]) %}"
    + repeated("[1]", "{% set n.x = [n.x, n.x] %}{% set m.x = [m.x, m.x] %}", "{{ n.x == m.x }}"),
    "repeated text": "{{ 'x' * 999999999999 }}",
    "repeated list": "{{ [1] * 999999999999 }}",
    "repeated from the left": "{{ 999999999999 * 'x' }}",
    "power": "{{ 9 ** 999999999 }}",
    "squares": repeated("9", "{% set n.x = n.x * n.x %}"),
    "wide %": "{{ '%999999999d' % 1 }}",
    "wide %*": "{{ '%*d' % (999999999, 1) }}",
    "wide format": "{{ '{:999999999}'.format(1) }}",
    "nested width": "{{ '{:{w}}'.format(1, w=999999999) }}",
    "named width": "{{ '%(a)999999999d' % {'a': 1} }}",
    "format_map": "{{ '{a:999999999}'.format_map({'a': 1}) }}",
    "format of long text": "{% set x = 'x' * 999999 %}{{ ('{0}' * 999).format(x) }}",
    "format filter": "{{ '%999999999d' | format(1) }}",
    "ljust": "{{ 'x'.ljust(999999999) }}",
    "zfill": "{{ 'x'.zfill(999999999) }}",
    "expandtabs": "{{ '\t'.expandtabs(999999999) }}",
    "center filter": "{{ 'x' | center(999999999) }}",
    "indent": "{{ 'x\n' | indent(999999999) }}",
    "json indent": "{{ [[1]] | tojson(indent=999999999) }}",
    "batch": "{{ [1] | batch(999999999, 0) | list }}",
    "slice": "{{ [1] | slice(999999999) | list }}",
    "round": "{{ 1.5 | round(999999999, 'ceil') }}",
    "replace": "{% set x = 'x' * 99999 %}{{ x.replace('x', x) }}",
    "replace filter": "{% set x = 'x' * 99999 %}{{ x | replace('x', x) }}",
    "join": "{% set x = 'x' * 99999 %}{{ x.join(['', ''] * 99999) }}",
    "join filter": "{% set x = 'x' * 99999 %}{{ range(99999) | join(x) }}",
    "mapped filter": "{{ range(99999) | map('center', 99999) | list }}",
    "sum of lists": "{{ [[1] * 99999] * 9999 | sum(start=[]) }}",
    "tests": "{% set l = range(99999) | list %}{{ range(-99999, 0) | select('in', l) | list }}",
    "many lists": "{% for a in range(99999) %}{{ range(99999) | list | length }}{% endfor %}",
    "strip of many": LONG + "{% set c = 'b' * 999999 ~ 'a' %}{{ s.strip(c) }}",
    "trim of many": LONG + "{% set c = 'b' * 999999 ~ 'a' %}{{ s | trim(c) }}",
    "search from the right": LONG + "{% set c = 'b' ~ 'a' * 99999 %}{{ s.rfind(c) }}",
    "equal items": LONG + "{% set a, b = {'x': s ~ 'b'}, {'x': s ~ 'b'} %}{{ [a] * 99999 == [b] * 99999 }}",
    "round to the left": "{{ 5 | round(-999999999) }}",
    "indent of many lines": "{% set s = '\n' * 999999 %}{{ s | indent(999, true, true) }}",
    "tabs of many": "{% set s = '\t' * 999999 %}{{ s.expandtabs(999) }}",
    "json of many lines": "{{ range(99999) | batch(1) | list | tojson(indent=999) }}",
    "a format that is long itself": "{% set s = '%(' * 99999 %}{{ s % 1 }}",
    "mapped copies": LONG + "{{ ([{'a': s}] * 999) | map(attribute='a') | map('upper') | list | length }}",
    "sort keys": LONG + "{{ ([{'a': s}] * 999) | sort(attribute='a') | length }}",
    "unique keys": LONG + "{{ ([{'a': s}] * 999) | unique(attribute='a') | list | length }}",
    "slices": LONG + many("s[1:]"),
    "copies by methods": LONG + many("s.upper()"),
    "copies by filters": LONG + many("s | upper"),
    "lists of characters": "{% set s = 'a' * 999999 %}" + many("s | list"),
    "pieces": "{% set s = 'a b ' * 99999 %}" + many("s.split()"),
    "split of a long text": "{% set s = 'ab ' * 9999999 %}{{ s.split() | length }}",
    "title of a long text": "{% set s = 'ab ' * 9999999 %}{{ s | title }}",
    "bytes": "{{ 'a'.encode().center(999999999) }}",
    "bytes of a number": "{{ (1).to_bytes(999999999) }}",
    "keys from a list": "{{ {}.fromkeys(range(9)) }}",
}


@pytest.mark.parametrize("source", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_template_is_stopped_in_time_and_memory(source: str) -> None:
    template = ChatTemplate({"default": source}, special_tokens={}, seconds=0.5)
    tracemalloc.start()
    start = time.process_time()
    with pytest.raises(TemplateRejected, match=r"failed: (it \w+s |sum is for numbers|\w+ is not available)"):
        template.render(HI)
    seconds, peak = time.process_time() - start, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seconds < 3
    assert peak < 300 * 2**20


def test_the_time_bound_is_on_the_clock_given() -> None:
    class Slow(ManualClock):
        def now(self) -> float:
            self.advance(0.125)
            return super().now()

    template = ChatTemplate({"default": "{% for i in range(100) %}x{% endfor %}"}, special_tokens={}, clock=Slow())
    with pytest.raises(TemplateRejected, match="it takes longer than 2 s"):
        template.render(HI)


def test_a_long_conversation_is_far_from_the_bounds() -> None:
    messages = [{"role": "user", "content": "x" * 1000}] * 2000
    text = render("{% for m in messages %}{{ '<|' ~ m.role + '|>' }}{{ m.content | trim }}{% endfor %}", messages)
    assert len(text) == 2000 * 1008


def test_the_work_of_a_template_that_looks_for_thoughts_is_far_from_the_bounds() -> None:
    """As Qwen 3's does it, over a conversation of three million characters."""
    source = (
        "{% for m in messages %}{% set c = m.content %}{% if '</think>' in c %}"
        "{% set c = c.split('</think>')[-1].lstrip('\\n') %}{% endif %}{% if loop.index0 > 0 and messages[1:] %}"
        "{{ '<|im_start|>' ~ m.role ~ '\\n' + c | trim }}{% endif %}{% endfor %}"
    )
    messages = [{"role": "user", "content": "<think>" + "y" * 400 + "</think>\n" + "x" * 600}] * 3000
    assert render(source, messages).count("x") == 2999 * 600


def test_a_template_longer_than_any_is_not_compiled() -> None:
    template = ChatTemplate({"default": "{{ messages }}" * 99999}, special_tokens={})
    assert "has 1399986 characters, more than 262144" in (template.problem or "")
    with pytest.raises(TemplateRejected, match="has 1399986 characters"):
        template.render(HI)


def test_nothing_takes_another_template_in() -> None:
    for source in ("{% include 'default' %}", "{% import 'default' as x %}", "{% extends 'default' %}"):
        with pytest.raises(TemplateRejected, match="no loader"):
            render(source)

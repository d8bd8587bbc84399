"""Answers in a terminal are broken between words, however they come."""

from __future__ import annotations

import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.cli.word_wrap import WordWrap


def wrapped(text: str, width: int, cut: int = 3) -> str:
    """The text, pushed ``cut`` characters at a time."""
    written: list[str] = []
    wrap = WordWrap(written.append, lambda: width)
    for begin in range(0, len(text), cut):
        wrap.push(text[begin : begin + cut])
    wrap.flush()
    return "".join(written)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("the tide comes in", "the tide \ncomes in"),
        ("the tide's up now", "the tide's\nup now"),
        ("one\ntwo three four", "one\ntwo three \nfour"),
        ("a\n\nb", "a\n\nb"),
        ("abcdefghijklmnop q", "abcdefghijklmnop q"),
        ("潮水每天来两次吗", "潮水每天来\n两次吗"),
        ("na\u0308ch\u0308ste e\u0301b", "na\u0308ch\u0308ste e\u0301b"),
        ("    indented by", "    \nindented \nby"),
        ("", ""),
    ],
)
def test_lines_of_ten_cells(text: str, shown: str) -> None:
    for cut in (1, 3, 100):
        assert wrapped(text, 10, cut) == shown


@given(st.text(alphabet="ab é\n", max_size=200), st.integers(2, 12), st.integers(1, 5))
def test_nothing_is_lost_and_no_line_is_too_long(text: str, width: int, cut: int) -> None:
    shown = wrapped(text, width, cut)
    assert "".join(shown.split()) == "".join(text.split())
    for line in shown.split("\n"):
        assert len(line) <= width or " " not in line.rstrip(" ")[:-1] or max(map(len, line.split())) > width


@given(st.lists(st.text(alphabet="abc", min_size=1, max_size=8), max_size=40))
def test_plain_words_are_broken_where_textwrap_breaks_them(words: list[str]) -> None:
    shown = [line.rstrip() for line in wrapped(" ".join(words), 12).split("\n")]
    assert shown == (textwrap.wrap(" ".join(words), 12) or [""])


def test_a_word_is_shown_as_soon_as_it_is_whole() -> None:
    written: list[str] = []
    wrap = WordWrap(written.append, lambda: 40)
    wrap.push("The ti")
    assert "".join(written) == "The "
    wrap.push("de ")
    assert "".join(written) == "The tide "


def test_a_terminal_that_becomes_narrower_counts_at_once() -> None:
    written: list[str] = []
    widths = iter([40] * 8 + [6] * 100)
    wrap = WordWrap(written.append, lambda: next(widths))
    wrap.push("tide and mill and tide and mill ")
    assert "\n" in "".join(written)

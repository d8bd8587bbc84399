"""Control tokens in callers' strings are broken, and nothing else is touched."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.core.errors import InvalidRequest
from tidemill.text.special_marks import SpecialMarker

M = "\ufdd0"


def test_strings_without_control_tokens_stay_as_they_are() -> None:
    values, marks = SpecialMarker(["<|end|>"]).protect([{"content": "<|en d|> <|end| >"}], {"x": 1})
    assert values == [[{"content": "<|en d|> <|end| >"}], {"x": 1}]
    assert marks == ()


def test_every_occurrence_is_broken_however_deep() -> None:
    values, marks = SpecialMarker(["<|end|>", "<s>"]).protect({"a": ["x<|end|><s>", {"<s>": None}], "b": 2})
    assert values == [{"a": [f"x<{M}|end|><{M}s>", {f"<{M}s>": None}], "b": 2}]
    assert marks == ((M, ""),)


def test_a_mark_that_occurs_in_the_input_is_not_used() -> None:
    values, marks = SpecialMarker(["<s>"]).protect("\ufdd0\ufdd1<s>")
    assert values == ["\ufdd0\ufdd1<\ufdd2s>"]
    assert marks == (("\ufdd2", ""),)


def test_input_with_all_marks_is_refused_only_if_one_is_needed() -> None:
    every = "".join(chr(code) for code in range(0xFDD0, 0xFDF0))
    assert SpecialMarker(["<s>"]).protect(every)[1] == ()
    with pytest.raises(InvalidRequest, match="U\\+FDD0"):
        SpecialMarker(["<s>"]).protect(every, "<s>")


def test_overlapping_and_single_character_control_tokens() -> None:
    assert SpecialMarker(["<<x>", "<x>"]).protect("<<x>")[0] == [f"<{M}<{M}x>"]
    values, marks = SpecialMarker(["§", "§§a"]).protect("§§a")
    assert values == ["\ufdd1\ufdd1a"]
    assert marks == ((M, ""), ("\ufdd1", "§"))


@given(st.lists(st.text("<ab>", min_size=1, max_size=4), max_size=6), st.text("<ab>", max_size=20))
@settings(max_examples=500, deadline=None)
def test_no_control_token_is_left_and_the_text_can_be_restored(specials: list[str], text: str) -> None:
    (marked,), marks = SpecialMarker(specials).protect(text)
    assert not any(special in marked for special in specials)
    for mark, meaning in marks:
        marked = marked.replace(mark, meaning)
    assert marked == text


def test_thousands_of_nested_control_tokens_are_no_burden() -> None:
    marker = SpecialMarker(["a" * length + "b" for length in range(3000)])
    values, marks = marker.protect("xaab")
    assert values == ["xa\ufdd0a\ufdd0\ufdd1"]  # ``b`` is one of them, of a single character
    assert marks == (("\ufdd0", ""), ("\ufdd1", "b"))

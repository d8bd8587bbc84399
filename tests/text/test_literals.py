"""The longest text at each place, from the left."""

from __future__ import annotations

import re
import time

from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.text.literals import LiteralFinder


def test_the_longest_wins_and_the_rest_stays() -> None:
    finder = LiteralFinder(["a", "aa", "aaaa", "<x>", "<xy>"])
    assert list(finder.split("baaaaaab<xy><x<x>")) == [
        ("b", False),
        ("aaaa", True),
        ("aa", True),
        ("b", False),
        ("<xy>", True),
        ("<x", False),
        ("<x>", True),
    ]


def test_places_inside_a_found_text_count_too() -> None:
    assert list(LiteralFinder(["aa", "ab"]).places("aaab-ab")) == [0, 1, 2, 5]
    assert list(LiteralFinder(["x"]).places("ab")) == []


def test_nothing_to_find() -> None:
    assert list(LiteralFinder([]).split("ab")) == [("ab", False)]
    assert list(LiteralFinder(["", "x"]).split("ab")) == [("ab", False)]
    assert list(LiteralFinder(["x"]).split("")) == []


@given(st.lists(st.text("ab^-]\\", min_size=1, max_size=4), max_size=8), st.text("ab^-]\\", max_size=30))
@settings(max_examples=300, deadline=None)
def test_it_finds_what_an_expression_of_all_texts_finds(texts: list[str], text: str) -> None:
    expression = re.compile("|".join(re.escape(each) for each in sorted(texts, key=len, reverse=True)) or r"(?!)")
    found = [piece for piece, is_text in LiteralFinder(texts).split(text) if is_text]
    assert found == expression.findall(text)
    assert "".join(piece for piece, _ in LiteralFinder(texts).split(text)) == text


def test_thousands_of_texts_are_no_burden() -> None:
    start = time.process_time()
    finder = LiteralFinder([*(f"<unused{i}>" for i in range(6000)), *("\n" * n for n in range(1, 3000))])
    pieces = list(finder.split("<unused" * 20_000 + "\n" * 5000 + "<unused17>"))
    assert time.process_time() - start < 1.0
    assert pieces[-1] == ("<unused17>", True)
    assert len(pieces) == 4

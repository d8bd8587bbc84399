"""The text ends before the first stop string completed, however it was cut, and nothing of a stop string appears."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.text.stops import StopMatcher


def run(stops: Sequence[str], pieces: Sequence[str]) -> tuple[list[str], str | None, int]:
    """What each push and the flush released, the stop, and how many tokens were."""
    matcher = StopMatcher(stops)
    released = [matcher.push(piece) for piece in pieces] + [matcher.flush()]
    assert sum(one.tokens for one in released) == matcher.released_tokens
    assert sum(len(one.text) for one in released) == matcher.released
    return [one.text for one in released], matcher.stop, matcher.released_tokens


def test_a_stop_over_three_pieces() -> None:
    assert run(["green blue"], ["red gre", "en bl", "ue sky"]) == (["red ", "", "", ""], "green blue", 1)


def test_a_near_miss_is_released() -> None:
    assert run(["green blue"], ["red gre", "en bl", "ack"]) == (["red ", "", "green black", ""], None, 3)


def test_a_stop_inside_one_piece() -> None:
    assert run(["4 5"], ["3 4 5 6", " 7"]) == (["3 ", "", ""], "4 5", 1)


def test_of_two_stops_one_of_which_begins_the_other_the_shorter_completes_first() -> None:
    for stops in (["ab", "abc"], ["abc", "ab"]):
        assert run(stops, ["x", "a", "b", "c"]) == (["x", "", "", "", ""], "ab", 1)
        assert run(stops, ["xabc"]) == (["x", ""], "ab", 1)


def test_of_two_stops_that_end_together_the_longer_counts() -> None:
    for stops in (["bc", "abc"], ["abc", "bc"]):
        assert run(stops, ["xa", "bc"]) == (["x", "", ""], "abc", 1)


def test_a_stop_inside_a_longer_one_that_is_not_complete() -> None:
    assert run(["bcdef", "cd"], ["abcdef"]) == (["ab", ""], "cd", 1)
    assert run(["bcdef", "cd"], list("abcdef"))[:2] == (["a", "", "", "b", "", "", ""], "cd")


def test_a_stop_at_the_very_end_and_one_that_never_comes() -> None:
    assert run(["!"], ["hello", "!"]) == (["hello", "", ""], "!", 1)
    assert run(["!?"], ["hello", "!"]) == (["hello", "", "!"], None, 2)


def test_a_stop_at_the_very_beginning_leaves_nothing() -> None:
    assert run(["\n"], ["\n", "more"]) == (["", "", ""], "\n", 0)


def test_a_beginning_that_repeats_inside_itself() -> None:
    assert run(["aab"], ["a", "a", "a", "a", "b"]) == (["", "", "a", "a", "", ""], "aab", 2)


def test_without_stops_everything_passes() -> None:
    assert run([], ["a", "", "b"]) == (["a", "", "b", ""], None, 3)


def test_tokens_without_text_belong_to_the_text_after_them() -> None:
    # "" is the first half of a character: its token counts with the text that follows, or not at all
    assert run(["."], ["a", "", "é", "."])[2] == 3
    assert run(["."], ["a", "", "."])[2] == 1
    assert run(["."], ["a", ""])[2] == 2


def test_after_the_stop_nothing_is_released() -> None:
    matcher = StopMatcher(["."])
    assert matcher.push("a.").text == "a"
    assert matcher.push("b.c").text == ""
    assert matcher.flush().text == ""
    assert (matcher.released, matcher.released_tokens) == (1, 1)


def test_an_empty_stop_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(["a", ""])


def expected(stops: Sequence[str], text: str) -> tuple[str, str | None]:
    """The rule, with str.find on the whole: earliest end, then longest."""
    found = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    if not found:
        return text, None
    end, _, stop = min(found)
    return text[: end - len(stop)], stop


SMALL = st.text("ab", max_size=4)


@given(st.lists(SMALL.filter(bool), max_size=4), st.lists(SMALL, max_size=12))
@settings(max_examples=1000, deadline=None)
def test_as_str_find_on_the_whole_text(stops: list[str], pieces: list[str]) -> None:
    released, stop, tokens = run(stops, pieces)
    text, expected_stop = expected(stops, "".join(pieces))
    assert ("".join(released), stop) == (text, expected_stop)
    starts = [len("".join(pieces[:i])) for i in range(len(pieces))]
    assert tokens == (len(pieces) if stop is None else sum(start < len(text) for start in starts))


@given(st.lists(SMALL.filter(bool), min_size=1, max_size=4), st.lists(SMALL, max_size=12))
@settings(max_examples=500, deadline=None)
def test_only_what_may_become_a_stop_is_held(stops: list[str], pieces: list[str]) -> None:
    matcher = StopMatcher(stops)
    seen = ""
    for piece in pieces:
        seen += piece
        if matcher.push(piece).stop is not None:
            return
        ends = [seen[i:] for i in range(len(seen) + 1)]
        held = next(end for end in ends if any(stop.startswith(end) for stop in stops))
        assert matcher.released == len(seen) - len(held)


def test_linear_time_with_many_stops_that_nearly_match() -> None:
    stops = ["a" * n + "b" for n in range(1, 65)]
    start = time.process_time()
    matcher = StopMatcher(stops)
    for _ in range(20_000):
        matcher.push("aaaaa")
    assert time.process_time() - start < 2.0
    assert matcher.released == 100_000 - 64

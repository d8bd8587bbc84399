"""The text of one choice: stop strings over token borders, and tokens that end where the text ends."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.toy_text import END, ToyText
from tidemill.core.step import TokenLogprob
from tidemill.core.tokens import FinishReason, TokenDelta
from tidemill.frontend.choice import ChoiceText, TextDelta


def _run(
    pieces: Sequence[str | bytes],
    stops: Sequence[str] = (),
    *,
    end: FinishReason = FinishReason.STOP,
    per_delta: int = 1,
    min_tokens: int = 0,
    logprobs: bool = True,
) -> tuple[ChoiceText, list[TextDelta]]:
    """Push pieces as tokens, ``per_delta`` at a time; the last delta carries the end, as a length limit does."""
    text = ToyText(pieces)
    ids = [text.id_of(piece) for piece in pieces]
    choice = ChoiceText(detokenizer=text.detokenizer(), stops=stops, min_tokens=min_tokens)
    out = []
    for at in range(0, len(ids), per_delta):
        group = tuple(ids[at : at + per_delta])
        last = at + per_delta >= len(ids)
        out.append(
            choice.push(
                TokenDelta(
                    request_id="r",
                    choice=0,
                    tokens=group,
                    logprobs=tuple(TokenLogprob(token=i, logprob=-1.0) for i in group) if logprobs else None,
                    finish_reason=end if last else None,
                    stop_token=END if last and end is FinishReason.STOP else None,
                )
            )
        )
        if choice.finish is not None:
            break
    return choice, out


def _text(deltas: Sequence[TextDelta]) -> str:
    return "".join(delta.text for delta in deltas)


def _tokens(deltas: Sequence[TextDelta]) -> int:
    return sum(len(delta.tokens) for delta in deltas)


# (pieces, stops, text, tokens of the text)
STOPPED = [
    (["red gre", "en bl", "ue sky"], ["green blue"], "red ", 1),
    (["3 4 5 6"], ["4 5"], "3 ", 1),
    (["1 ", "2 ", "3 ", "4"], ["3"], "1 2 ", 2),
    (["ab", "cd", "ef"], ["cd", "cdef"], "ab", 1),
    (["ab", "cd", "ef"], ["cdef", "cd"], "ab", 1),
    (["ab", "cd", "ef"], ["bcd", "cd"], "a", 1),
    (["x", "END"], ["END"], "x", 1),
    (["END"], ["END"], "", 0),
    (["E", "N", "D"], ["END"], "", 0),
    (["sea ", "\N{WATER WAVE}".encode()[:2], "\N{WATER WAVE}".encode()[2:], " land"], ["\N{WATER WAVE}"], "sea ", 1),
    (["a", "aab"], ["ab"], "aa", 2),
]


@pytest.mark.parametrize("case", STOPPED)
@pytest.mark.parametrize("per_delta", [1, 2, 9])
@pytest.mark.parametrize("end", [FinishReason.STOP, FinishReason.LENGTH])
def test_text_tokens_and_count_end_before_the_stop(case, per_delta, end):
    pieces, stops, text, tokens = case
    choice, deltas = _run(pieces, stops, end=end, per_delta=per_delta)
    assert _text(deltas) == text
    assert _tokens(deltas) == tokens
    assert choice.num_tokens == tokens
    assert choice.finish is FinishReason.STOP
    assert [delta.finish for delta in deltas] == [None] * (len(deltas) - 1) + [FinishReason.STOP]


def test_a_near_miss_is_held_back_and_then_released():
    choice, deltas = _run(["green", " bl", "ack", " sky"], ["green blue"], end=FinishReason.LENGTH)
    assert [delta.text for delta in deltas] == ["", "", "green black", " sky"]
    assert [len(delta.tokens) for delta in deltas] == [0, 0, 3, 1]
    assert choice.finish is FinishReason.LENGTH


def test_what_is_held_back_comes_out_at_the_end():
    choice, deltas = _run(["red ", "green bl"], ["green blue"], end=FinishReason.LENGTH)
    assert [delta.text for delta in deltas] == ["red ", "green bl"]
    assert _tokens(deltas) == 2
    assert choice.finish is FinishReason.LENGTH


def test_an_end_token_counts_but_is_no_token_of_the_text():
    choice, deltas = _run(["a", "b"])
    assert _text(deltas) == "ab"
    assert _tokens(deltas) == 2
    assert choice.num_tokens == 3


def test_tokens_of_a_character_come_with_the_character():
    wave = "\N{WATER WAVE}".encode()
    _, deltas = _run([wave[:1], wave[1:3], wave[3:]], end=FinishReason.LENGTH)
    assert [delta.text for delta in deltas] == ["", "", "\N{WATER WAVE}"]
    assert [len(delta.tokens) for delta in deltas] == [0, 0, 3]
    assert [token.start for token in deltas[-1].tokens] == [0, 0, 0]


def test_half_a_character_at_the_end_is_shown_as_unknown():
    _, deltas = _run(["a", "\N{WATER WAVE}".encode()[:2]], end=FinishReason.LENGTH)
    assert _text(deltas) == "a\N{REPLACEMENT CHARACTER}"
    assert _tokens(deltas) == 2


@given(
    pieces=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=8, unique=True),
    stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    per_delta=st.integers(1, 3),
)
def test_pieces_make_no_difference_to_the_answer(pieces, stops, per_delta):
    """Whatever the token borders: the text is cut before the first stop completed, its tokens are those that begin
    before the cut, and those shown so far never reach beyond the text shown so far."""
    choice, deltas = _run(pieces, stops, end=FinishReason.LENGTH, per_delta=per_delta)
    whole = "".join(pieces)
    ends = [(whole.find(stop) + len(stop), -len(stop)) for stop in stops if stop in whole]
    cut = sum(min(ends)) if ends else len(whole)
    assert _text(deltas) == whole[:cut]
    starts = [sum(map(len, pieces[:i])) for i in range(len(pieces))]
    assert _tokens(deltas) == choice.num_tokens == sum(start < cut for start in starts)
    shown = 0
    for delta in deltas:
        shown += len(delta.text)
        assert all(token.start < shown for token in delta.tokens)


@pytest.mark.parametrize("per_delta", [1, 2, 5])
def test_stop_strings_are_looked_for_behind_the_least_number_of_tokens(per_delta: int) -> None:
    pieces = ["a.", "b.", "c.", "d.", "e."]
    assert _text(_run(pieces, ["."], min_tokens=3, per_delta=per_delta)[1]) == "a.b.c.d"


@given(
    pieces=st.lists(st.sampled_from(["a", " b", "\u00e9\u00e9", "\n", b"\xf0\x9f", b"\x98\x80", b"\xff"]), min_size=1),
    per_delta=st.integers(1, 4),
    end=st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]),
)
def test_without_stop_strings_and_log_probabilities_the_answer_is_the_same(
    pieces: list[str | bytes], per_delta: int, end: FinishReason
) -> None:
    """The short way and the long one."""
    whole, expected = _run(pieces, ["never there"], end=end, per_delta=per_delta)
    plain, out = _run(pieces, end=end, per_delta=per_delta, logprobs=False)
    assert _text(out) == _text(expected)
    assert (plain.num_tokens, plain.finish) == (whole.num_tokens, whole.finish)
    assert _tokens(out) == 0

"""Tokens spread over chunks whose numbers nobody tells."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidemill.bench.load.watch import Piece, settle


@given(st.lists(st.integers(0, 400), min_size=1, max_size=60), st.integers(1, 500))
def test_all_tokens_are_somewhere_the_first_and_the_last_where_they_came(weights: list[int], total: int) -> None:
    pieces = [Piece(float(k), None, weight) for k, weight in enumerate(weights)]
    arrived, counted = settle(pieces, total, end_token=False)
    assert sum(item.tokens for item in arrived) == total
    assert all(item.tokens >= 1 for item in arrived)
    assert arrived[0].at == 0.0
    if total > 1:
        assert arrived[-1].at == len(weights) - 1
    if total >= len(weights):
        assert len(arrived) == len(weights)
    assert (counted == "each") == (total == len(weights))


def test_longer_text_is_more_tokens() -> None:
    pieces = [Piece(0.0, None, 5), Piece(1.0, None, 125), Piece(2.0, None, 20)]
    assert [item.tokens for item in settle(pieces, 30, end_token=False)[0]] == [1, 25, 4]


def test_known_numbers_stay_as_they_are() -> None:
    pieces = [Piece(0.0, 3, 1), Piece(1.0, 2, 100)]
    arrived, counted = settle(pieces, 6, end_token=False)
    assert ([item.tokens for item in arrived], counted) == ([3, 2], "each")


def test_a_total_of_nothing_is_not_believed() -> None:
    pieces = [Piece(0.0, None, 3), Piece(1.0, None, 3)]
    assert settle(pieces, 0, end_token=False) == settle(pieces, None, end_token=False)
    assert settle(pieces, None, end_token=False)[1] == "chunks"

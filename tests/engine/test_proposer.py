"""Resolving proposals: the accepted prefix and one token more."""

from __future__ import annotations

import pytest

from tidemill.engine.proposer import resolve


@pytest.mark.parametrize(
    ("proposed", "sampled", "kept"),
    [
        ((), (5,), (5,)),
        ((1, 2, 3), (1, 2, 3, 4), (1, 2, 3, 4)),
        ((1, 2, 3), (1, 2, 9, 4), (1, 2, 9)),
        ((1, 2, 3), (9, 2, 3, 4), (9,)),
        ((1, 1), (1, 2, 1), (1, 2)),
    ],
)
def test_the_right_prefix_and_one_more_are_kept(
    proposed: tuple[int, ...], sampled: tuple[int, ...], kept: tuple[int, ...]
) -> None:
    assert resolve(proposed, sampled) == kept


def test_a_draw_for_each_proposal_and_one_more_is_needed() -> None:
    with pytest.raises(ValueError, match="2 tokens drawn for 2 proposals"):
        resolve((1, 2), (1, 2))

"""Prompt lookup: what followed the longest match with what the sequence ends with."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from tidemill.core.step import RowOptions, SequenceId
from tidemill.engine.ngrams import NgramIndex, NgramProposer
from tidemill.engine.proposer import Asked


def asked(tokens: Sequence[int], limit: int = 4, sequence: int = 0) -> Asked:
    return Asked(
        sequence=SequenceId(sequence),
        tokens=tokens,
        num_prompt=1,
        scope=("", ""),
        limit=limit,
        options=lambda _: RowOptions(),
    )


def proposed(tokens: Sequence[int], limit: int = 4) -> list[int]:
    return list(NgramProposer().propose([asked(tokens, limit)])[0])


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([1, 2, 3, 7, 8, 9, 5, 1, 2, 3], [7, 8, 9, 5]),
        ([1, 2, 3, 7, 0, 1, 2, 3, 8, 0, 1, 2, 3], [8, 0, 1, 2]),  # of two that match as long: the later one
        ([4, 1, 2, 3, 7, 0, 5, 1, 2, 3, 8, 0, 4, 1, 2, 3], [7, 0, 5, 1]),  # the longer match is the earlier one
        ([1, 2, 3, 7, 1, 2, 4], []),
        ([1, 2, 3], []),
        ([1, 2], []),
        ([], []),
        ([9, 5, 5, 5, 5], [5, 5, 5, 5]),  # a passage that runs into the end repeats itself
        ([9, 1, 2, 1, 2, 1, 2, 1, 2], [1, 2, 1, 2]),
    ],
)
def test_what_followed_the_longest_match_is_proposed(tokens: list[int], expected: list[int]) -> None:
    assert proposed(tokens) == expected


def test_an_index_that_grows_finds_what_one_made_at_once_does() -> None:
    numbers = random.Random(4)
    tokens: list[int] = []
    growing = NgramIndex()
    for _ in range(400):
        tokens += [numbers.randrange(3) for _ in range(numbers.randrange(1, 4))]
        assert growing.find(tokens) == NgramIndex().find(tokens)


def test_the_place_found_has_the_longest_match_of_the_last_eight() -> None:
    numbers = random.Random(7)
    for _ in range(200):
        tokens = [numbers.randrange(4) for _ in range(60)]
        places = [at for at in range(3, len(tokens)) if tokens[at - 3 : at] == tokens[-3:]][-8:]
        found = NgramIndex().find(tokens)
        if not places:
            assert found is None
            continue

        def match(place: int, tokens: list[int] = tokens) -> int:
            return next(n for n in range(1, 99) if n > min(place, 32) or tokens[place - n] != tokens[-n]) - 1

        assert found == max(places, key=lambda place: (match(place), place))


class Counted(list[int]):
    """Tokens that count how often they are read."""

    reads = 0

    def __getitem__(self, at):  # type: ignore[no-untyped-def]
        self.reads += len(range(*at.indices(len(self)))) if isinstance(at, slice) else 1
        return super().__getitem__(at)


@pytest.mark.parametrize("size", [1000, 4000])
def test_a_sequence_costs_time_in_proportion_to_its_length(size: int) -> None:
    """The worst text: all tokens the same, so that every place matches."""
    proposer, tokens = NgramProposer(), Counted([5] * 10)
    for _ in range(size):
        tokens.append(5)
        proposer.propose([asked(tokens)])
    assert tokens.reads < 700 * size


def test_what_a_sequence_left_is_let_go() -> None:
    proposer = NgramProposer()
    proposer.propose([asked([1, 2, 3, 4]), asked([1, 2, 3, 4], sequence=1)])
    proposer.leave(SequenceId(0), [1, 2, 3, 4], 1, ("", ""))
    proposer.leave(SequenceId(7), [], 0, ("", ""))
    assert list(proposer._indexes) == [1]

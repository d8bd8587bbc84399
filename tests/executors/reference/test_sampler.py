"""The reference draw: known random numbers, the order of the cuts, penalties, ties, and the distribution."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

from tidemill.core.step import PenaltyCounts, RowOptions
from tidemill.executors.reference.noise import gumbel, philox, uniform
from tidemill.executors.reference.sampler import draw, log_probabilities


def logits(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def drawn(values: np.ndarray, *, position: int = 1, proposals: tuple[int, ...] = (), **options: Any) -> int:
    return draw(values, RowOptions(**options), proposals=proposals, position=position)


def counts(values: np.ndarray, draws: int = 4000, **options: Any) -> Counter[int]:
    return Counter(drawn(values, position=position, temperature=1.0, **options) for position in range(draws))


# --- random numbers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ([0, 0, 0, 0], (0, 0), [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, (0xFFFFFFFF, 0xFFFFFFFF), [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            (0xA4093822, 0x299F31D0),
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox_gives_the_published_answers(counter: list[int], key: tuple[int, int], words: list[int]) -> None:
    """The known-answer vectors of Random123 for philox4x32-10."""
    assert philox(np.array([counter], np.uint32), key)[0].tolist() == words


def test_noise_depends_on_seed_choice_and_position_only() -> None:
    one = gumbel(100, seed=1, choice=2, position=3)
    np.testing.assert_array_equal(one[:7], gumbel(7, seed=1, choice=2, position=3))
    for change in ({"seed": 2}, {"seed": 1 + 2**32}, {"choice": 3}, {"position": 4}):
        assert not np.any(one == gumbel(100, **{"seed": 1, "choice": 2, "position": 3} | change))


def test_uniform_numbers_are_inside_zero_and_one_and_even() -> None:
    numbers = uniform(100_000, seed=5, choice=0, position=0)
    assert numbers.min() > 0
    assert numbers.max() < 1
    assert abs(float(numbers.astype(np.float64).mean()) - 0.5) < 0.004  # four standard deviations


# --- greedy -------------------------------------------------------------------------------------------------------


def test_greedy_takes_the_best_and_the_lowest_of_equals() -> None:
    assert drawn(logits(1, 3, 3, 2)) == 1
    assert drawn(logits(1, 3, 3, 2), temperature=1e-5) == 1
    assert drawn(logits(np.nan, 1, np.inf, 2)) == 2
    assert drawn(logits(np.nan, -5)) == 1


# --- the distribution ---------------------------------------------------------------------------------------------


def test_draws_follow_the_softmax() -> None:
    """Chi-square over 4000 draws and four tokens: 16.3 is passed once in a thousand times."""
    probabilities = np.array([0.5, 0.3, 0.15, 0.05])
    seen = counts(np.log(probabilities).astype(np.float32), seed=9)
    expected = 4000 * probabilities
    assert sum((seen[i] - expected[i]) ** 2 / expected[i] for i in range(4)) < 16.3


def test_temperature_sharpens() -> None:
    values = np.log(np.array([0.6, 0.4], np.float32))
    half = Counter(drawn(values, position=p, temperature=0.5, seed=3) for p in range(4000))
    assert abs(half[0] / 4000 - 0.36 / 0.52) < 0.03


def test_a_seed_repeats_and_choices_differ() -> None:
    values = np.zeros(1000, np.float32)
    runs = [[drawn(values, position=p, temperature=1.0, seed=7, choice=c) for p in range(20)] for c in (0, 0, 1)]
    assert runs[0] == runs[1] != runs[2]


# --- cuts ---------------------------------------------------------------------------------------------------------

FOUR = np.log(np.array([0.1, 0.4, 0.3, 0.2], np.float32))


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"top_k": 1}, {1}),
        ({"top_k": 2}, {1, 2}),
        ({"top_k": 100}, {0, 1, 2, 3}),
        ({"top_p": 0.39}, {1}),
        ({"top_p": 0.41}, {1, 2}),
        ({"top_p": 0.71}, {1, 2, 3}),
        ({"min_p": 0.7}, {1, 2}),
        ({"min_p": 1.0}, {1}),
        ({"top_k": 3, "top_p": 0.75}, {1, 2}),  # 0.4 and 0.3 are 0.78 of what top-k keeps
        ({"top_p": 0.75}, {1, 2, 3}),
        ({"top_k": 2, "min_p": 0.8}, {1}),
    ],
)
def test_cuts_keep_a_beginning_of_the_ranking(options: dict[str, Any], kept: set[int]) -> None:
    assert set(counts(FOUR, draws=400, **options)) == kept


def test_of_equals_top_k_keeps_the_lowest_ids() -> None:
    assert set(counts(np.zeros(8, np.float32), draws=200, top_k=3)) == {0, 1, 2}


def test_top_p_acts_after_temperature() -> None:
    hot = Counter(drawn(FOUR, position=p, temperature=2.0, top_p=0.5) for p in range(400))
    assert set(hot) == {1, 2}  # at temperature 2 the first has 0.33, two have 0.61


# --- bias and penalties -------------------------------------------------------------------------------------------


def seen(ids: list[int], output_counts: list[int]) -> PenaltyCounts:
    return PenaltyCounts(ids=ids, output_counts=output_counts)


def test_bias_is_added_first() -> None:
    assert drawn(logits(1, 2, 3), logit_bias=((0, 5.0),)) == 0
    assert drawn(logits(1, 2, 3), logit_bias=((2, -100.0),)) == 1


def test_repetition_acts_on_prompt_and_output_by_sign() -> None:
    assert drawn(logits(2, 1.5), repetition_penalty=2.0, penalties=seen([0], [0])) == 1
    assert drawn(logits(-1, -1.5), repetition_penalty=2.0, penalties=seen([0], [0])) == 1
    assert drawn(logits(2, 1.5), repetition_penalty=1.2, penalties=seen([0], [1])) == 0


def test_presence_and_frequency_act_on_the_output_only() -> None:
    assert drawn(logits(2, 1.5), presence_penalty=1.0, penalties=seen([0], [0])) == 0
    assert drawn(logits(2, 1.5), presence_penalty=1.0, penalties=seen([0], [1])) == 1
    assert drawn(logits(2, 1.1), frequency_penalty=0.25, penalties=seen([0], [3])) == 0
    assert drawn(logits(2, 1.1), frequency_penalty=0.25, penalties=seen([0], [4])) == 1


def test_proposals_count_as_if_they_were_accepted() -> None:
    options = {"presence_penalty": 1.0, "penalties": seen([], [])}
    assert drawn(logits(2, 1.5), **options) == 0
    assert drawn(logits(2, 1.5), proposals=(0,), **options) == 1
    twice = {"frequency_penalty": 0.3, "penalties": seen([0], [1])}
    assert drawn(logits(2, 1.3), proposals=(0,), **twice) == 0
    assert drawn(logits(2, 1.3), proposals=(0, 0), **twice) == 1


# --- log-probabilities --------------------------------------------------------------------------------------------


def test_log_probabilities_are_those_of_the_raw_logits() -> None:
    values = np.log(np.array([0.25, 0.5, 0.25], np.float32)) + np.float32(3)
    result = log_probabilities(values, 2, 2)
    assert result.token == 2
    assert result.logprob == pytest.approx(math.log(0.25), abs=1e-6)
    assert [token for token, _ in result.top] == [1, 0]
    assert [value for _, value in result.top] == pytest.approx([math.log(0.5), math.log(0.25)], abs=1e-6)
    assert log_probabilities(values, 2, 0).top == ()

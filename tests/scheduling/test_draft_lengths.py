"""The length of drafts: as many tokens as pay, and none where none pays. Steps are made up."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tidemill.scheduling.draft_lengths import Acceptance, AdaptiveLengths
from tidemill.scheduling.step_costs import StepCosts

KIND = "ngram"


def memory_bound(tokens: int) -> float:
    """Four tokens cost what one does, then each costs a part."""
    return 1.0 + 0.1 * max(0, tokens - 4)


def compute_bound(tokens: int) -> float:
    return float(tokens)


def drive(
    rate: float,
    seconds: Callable[[int], float],
    *,
    answers: int = 1,
    steps: int = 600,
    limit: int = 8,
    draft_seconds: float = 0.0,
) -> tuple[float, list[int]]:
    """Tokens per second with guesses of which a part is right, over that without; and the lengths that were chosen."""
    lengths, numbers = AdaptiveLengths(limit), random.Random(3)
    records = [lengths.acceptance(KIND) for _ in range(answers)]
    time, tokens, chosen = 0.0, 0, []
    for _ in range(steps):
        lengths.begin(answers)
        drafts = []
        for record in records:
            count = lengths.most(KIND, record, limit)
            if count:
                lengths.take(KIND, record, count)
                lengths.drafted(KIND, count, count * draft_seconds)
            drafts.append(count)
        rows = answers + sum(drafts)
        lengths.observe(answers, rows, seconds(rows))
        time += seconds(rows) + draft_seconds * sum(drafts)
        for record, count in zip(records, drafts, strict=True):
            right = next((place for place in range(count) if numbers.random() >= rate), count)
            tokens += 1 + right
            if count:
                lengths.settle(KIND, record, count, right)
        chosen += drafts
    return tokens / time / (answers / seconds(answers)), chosen


def test_where_guesses_are_right_and_rows_cost_little_many_are_made() -> None:
    gain, chosen = drive(0.97, memory_bound)
    assert gain > 3.5
    assert sum(chosen[-100:]) > 700


def test_at_middling_rates_drafts_are_short() -> None:
    gain, chosen = drive(0.5, memory_bound)
    assert gain > 1.5
    assert 2 <= sum(chosen[-200:]) / 200 <= 4


@pytest.mark.parametrize("rate", [0.0, 0.05, 0.3])
def test_where_each_row_costs_as_much_as_the_first_guessing_stops(rate: float) -> None:
    gain, chosen = drive(rate, compute_bound, steps=3000)
    assert gain > 0.97
    assert sum(map(bool, chosen[-1000:])) <= 3


def test_sixteen_streams_that_fill_the_machine_guess_next_to_nothing() -> None:
    gain, chosen = drive(0.4, compute_bound, answers=16, steps=1000)
    assert gain > 0.97
    assert sum(chosen[-1600:]) < 32


def test_what_it_takes_to_guess_counts() -> None:
    cheap, _ = drive(0.8, memory_bound, draft_seconds=0.05)
    dear, chosen = drive(0.8, memory_bound, draft_seconds=0.9, steps=3000)
    assert cheap > 1.8
    assert dear > 0.97
    assert sum(map(bool, chosen[-1000:])) <= 3


def test_a_text_that_becomes_repetitive_is_found_out() -> None:
    lengths = AdaptiveLengths(8)
    record = lengths.acceptance(KIND)
    proposed_after = None
    for step in range(4000):
        lengths.begin(1)
        count = lengths.most(KIND, record, 8)
        if count:
            lengths.take(KIND, record, count)
            lengths.settle(KIND, record, count, count if step >= 2000 else 0)
        lengths.observe(1, 1 + count, memory_bound(1 + count) + 0.3 * count * (step < 2000))
        if step >= 2000 and count == 8 and proposed_after is None:
            proposed_after = step - 2000
    assert proposed_after is not None
    assert proposed_after <= 1200


def test_what_is_behind_the_first_wrong_token_says_nothing() -> None:
    short, long = Acceptance(0.5), Acceptance(0.5)
    short.add(2, 1)
    long.add(8, 1)
    assert short.rate == long.rate
    long.add(8, 8)
    assert long.rate > 0.8


def test_a_stall_is_not_believed() -> None:
    costs = StepCosts()
    for seconds in (1.0, 1.0, 30.0, 1.1):
        costs.add(1, 1, seconds)
    assert costs.seconds(1, 1) <= 1.1


def test_between_measured_sizes_seconds_lie_between_and_beyond_them_they_grow() -> None:
    costs = StepCosts()
    assert not costs.known(2)
    assert costs.seconds(2, 2) == 1
    costs.add(2, 2, 1.0)
    costs.add(2, 6, 3.0)
    assert costs.known(2)
    assert costs.seconds(2, 4) == 2.0
    assert costs.seconds(2, 6) == 3.0
    assert costs.seconds(2, 12) > 3.5
    assert costs.seconds(1, 1) == 1, "other numbers of answers say nothing"


def test_a_size_that_was_not_measured_for_long_is_not_believed() -> None:
    costs = StepCosts()
    costs.add(1, 4, 100.0)
    for _ in range(1100):
        costs.add(1, 1, 1.0)
    assert costs.seconds(1, 4) < 2


def test_nothing_is_tried_where_it_would_not_pay_even_if_all_were_right() -> None:
    """Each token costs more than the steps of all answers before it: sixteen streams, 400 steps."""
    gain, chosen = drive(1.0, lambda tokens: tokens**2 / 16, answers=16, steps=400)
    assert gain > 0.97
    assert sum(chosen[-16 * 380 :]) == 0


def test_a_first_guess_that_reads_the_whole_prompt_is_not_taken_for_what_guesses_cost() -> None:
    lengths = AdaptiveLengths(8)
    chosen = []
    for _ in range(3):
        record = lengths.acceptance(KIND)
        for step in range(40):
            lengths.begin(1)
            count = lengths.most(KIND, record, 8)
            if count:
                lengths.take(KIND, record, count)
                lengths.drafted(KIND, count, 20.0 if step == 0 else 0.1 * count)
                lengths.settle(KIND, record, count, count)
            lengths.observe(1, 1 + count, memory_bound(1 + count))
            chosen.append(count)
    assert min(chosen) > 0
    assert sum(chosen[-40:]) > 300

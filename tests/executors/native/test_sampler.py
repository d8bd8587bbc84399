"""The draw: distribution, cuts, penalties and seeds. Logits are rows of a table, chosen by the token id."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from tests.executors.native.small_graphs import SmallGraph, executor_for, plan_row, step
from tests.support.isas import EVERY_ISA
from tidemill.core.config import ExecutorConfig
from tidemill.core.mask import only, without
from tidemill.core.step import PenaltyCounts, RowOptions, RowOutputs
from tidemill.executors.native._native import supported_isas
from tidemill.executors.native.executor import NativeExecutor
from tidemill.executors.reference.sampler import draw, log_probabilities

Logits = npt.NDArray[np.float32]


@pytest.fixture(params=EVERY_ISA)
def isa(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def executor_of(logits: Logits, isa: str = "auto", threads: int = 1) -> NativeExecutor:
    """An executor that gives token t the logits of row t of a square matrix."""
    small = SmallGraph()
    config = ExecutorConfig(threads=threads, isa=isa)  # type: ignore[arg-type]
    return executor_for(small, small.embed("logits", logits), config=config)


def with_first_row(row: Sequence[float]) -> Logits:
    """Logits whose row 0 is this one."""
    logits = np.zeros((len(row), len(row)), np.float32)
    logits[0] = row
    return logits


def outputs_of(
    executor: NativeExecutor, tokens: Sequence[int], options: RowOptions, *, start: int = 0, outputs: int | None = None
) -> RowOutputs:
    executor.submit(step(plan_row(tokens, start=start, outputs=outputs, options=options, groups=0)))
    return executor.collect().rows[0]


def many_draws(executor: NativeExecutor, options: RowOptions, count: int) -> list[int]:
    """Draws from the logits of token 0 at positions 1 .. count, without penalties between them."""
    return list(outputs_of(executor, [0] * count, options).tokens)


def chi_square(counts: Counter[int], probabilities: npt.NDArray[np.float64], draws: int) -> float:
    expected = probabilities * draws
    seen = np.array([counts[i] for i in range(len(expected))])
    return float((((seen - expected) ** 2) / expected).sum())


def test_draws_follow_the_softmax(isa: str) -> None:
    """40,000 draws over 37 tokens at temperature 0.7: chi-square below its 0.999 quantile for 36 degrees (67.98)."""
    random = np.random.default_rng(3)
    row = random.standard_normal(37).astype(np.float32)
    executor = executor_of(with_first_row(row.tolist()), isa)
    counts = Counter(many_draws(executor, RowOptions(temperature=0.7, seed=11), 40_000))
    weights = np.exp(row.astype(np.float64) / np.float64(np.float32(0.7)))
    assert chi_square(counts, weights / weights.sum(), 40_000) < 67.98
    executor.close()


def test_draws_follow_the_softmax_after_cuts(isa: str) -> None:
    """With top-k 6 the six tokens keep their proportions: 0.999 quantile for 5 degrees is 20.52."""
    row = [1.0, 0.5, -0.3, 0.9, 0.0, 0.2, -1.0, -0.4, -2.0]
    executor = executor_of(with_first_row(row), isa)
    counts = Counter(many_draws(executor, RowOptions(temperature=1.0, top_k=6, seed=5), 20_000))
    kept = [0, 3, 1, 5, 4, 2]
    assert set(counts) == set(kept)
    weights = np.exp(np.array(row))[kept]
    renamed = Counter({i: counts[token] for i, token in enumerate(kept)})
    assert chi_square(renamed, weights / weights.sum(), 20_000) < 20.52
    executor.close()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nothing_but_what_the_mask_allows_is_drawn(isa: str, temperature: float) -> None:
    """In words of 32 tokens, the last one cut short; of the allowed ones the proportions stay."""
    vocab = 70
    row = [0.01 * i for i in range(vocab)]
    allowed = [0, 31, 32, 65]
    executor = executor_of(with_first_row(row), isa)
    options = RowOptions(temperature=temperature, seed=8, masks=(only(allowed, vocab),) * 4000)
    drawn = Counter(many_draws(executor, options, 4000))
    assert set(drawn) == ({65} if temperature == 0 else set(allowed))
    if temperature:
        weights = np.exp(np.array(row))[allowed]
        renamed = Counter({i: drawn[token] for i, token in enumerate(allowed)})
        assert chi_square(renamed, weights / weights.sum(), 4000) < 16.27  # 0.999 quantile, 3 degrees of freedom
    executor.close()


def test_each_output_has_a_mask_of_its_own_and_an_empty_one_gives_token_0(isa: str) -> None:
    executor = executor_of(with_first_row([1.0, 2.0, 3.0]), isa)
    masks = (only([1], 3), None, only([], 3), without([2], 3))
    assert outputs_of(executor, [0] * 4, RowOptions(masks=masks), outputs=4).tokens == (1, 2, 0, 1)
    executor.close()


PROBABILITIES = [0.05, 0.4, 0.1, 0.25, 0.05, 0.15]  # ranking: 1, 3, 5, 2, 0, 4 (ties to the lowest id)


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, {0, 1, 2, 3, 4, 5}),
        ({"top_k": 1}, {1}),
        ({"top_k": 5}, {0, 1, 2, 3, 5}),  # the tie between 0 and 4 goes to 0
        ({"top_k": 99}, {0, 1, 2, 3, 4, 5}),
        ({"top_k": -1}, {0, 1, 2, 3, 4, 5}),
        ({"top_p": 0.39}, {1}),
        ({"top_p": 0.41}, {1, 3}),
        ({"top_p": 0.79}, {1, 3, 5}),
        ({"top_p": 0.81}, {1, 2, 3, 5}),
        ({"top_p": 0.94}, {0, 1, 2, 3, 5}),
        ({"top_p": 0.96}, {0, 1, 2, 3, 4, 5}),
        ({"top_p": 1e-9}, {1}),
        ({"min_p": 0.38}, {1, 3}),  # 0.15 / 0.4 = 0.375
        ({"min_p": 0.37}, {1, 3, 5}),
        ({"min_p": 1.0}, {1}),
        ({"top_k": 3, "top_p": 0.8}, {1, 3}),  # of the three kept, 0.65 / 0.8 = 0.8125
        ({"top_k": 3, "top_p": 0.82}, {1, 3, 5}),
        ({"top_p": 0.81, "min_p": 0.3}, {1, 3, 5}),
    ],
)
def test_cuts_keep_exactly_these(isa: str, options: dict[str, float], kept: set[int]) -> None:
    executor = executor_of(with_first_row([math.log(p) for p in PROBABILITIES]), isa)
    assert set(many_draws(executor, RowOptions(temperature=1.0, seed=2, **options), 2000)) == kept  # type: ignore[arg-type]
    executor.close()


def test_top_p_comes_after_temperature(isa: str) -> None:
    """At temperature 2 the probabilities are 0.28, 0.22, 0.17, 0.14, 0.10, 0.10: half of the mass needs two more."""
    executor = executor_of(with_first_row([math.log(p) for p in PROBABILITIES]), isa)
    assert set(many_draws(executor, RowOptions(temperature=1.0, top_p=0.5, seed=1), 2000)) == {1, 3}
    assert set(many_draws(executor, RowOptions(temperature=2.0, top_p=0.51, seed=1), 2000)) == {1, 3, 5}
    executor.close()


def test_top_p_is_exact_over_a_flat_vocabulary(isa: str) -> None:
    """1,000 equally likely tokens, top_p 0.7: the 700 lowest ids, by the tie rule, not some few hundred candidates."""
    small = SmallGraph()
    executor = executor_for(
        small,
        small.embed("logits", np.zeros((1000, 1000), np.float32)),
        config=ExecutorConfig(threads=1, isa=isa),  # type: ignore[arg-type]
    )
    drawn = set(many_draws(executor, RowOptions(temperature=1.0, top_p=0.7, seed=4), 12_000))
    assert drawn == set(range(700))
    executor.close()


def test_greedy_takes_the_lowest_of_equals_and_ignores_cuts(isa: str) -> None:
    row = [0.0] * 33
    row[9] = row[31] = row[32] = 2.5
    executor = executor_of(with_first_row(row), isa)
    for temperature in (0.0, 1e-45, 1e-5):
        assert outputs_of(executor, [0], RowOptions(temperature=temperature, top_p=0.1, seed=7)).tokens == (9,)
    executor.close()


def flips_at(value: float, **options: object) -> None:
    """Token 0 has logit 2 and is penalised to ``value``: a rival just below loses to it, one just above wins."""
    for rival, winner in ((np.nextafter(np.float32(value), -np.inf), 0), (np.nextafter(np.float32(value), np.inf), 1)):
        executor = executor_of(with_first_row([2.0, float(rival), -50.0]))
        assert outputs_of(executor, [0], RowOptions(**options)).tokens == (winner,)  # type: ignore[arg-type]
        executor.close()


def test_penalties_are_exactly_these_numbers() -> None:
    """Repetition 1.25 on prompt or output; presence 0.5 once and frequency 0.25 per count on the output only."""
    prompt_only = PenaltyCounts(ids=[0], output_counts=[0])
    three_times = PenaltyCounts(ids=[0], output_counts=[3])
    flips_at(1.6, repetition_penalty=1.25, penalties=prompt_only)
    flips_at(1.6, repetition_penalty=1.25, penalties=three_times)
    flips_at(2.0, presence_penalty=0.5, penalties=prompt_only)
    flips_at(1.5, presence_penalty=0.5, penalties=three_times)
    flips_at(2.0, frequency_penalty=0.25, penalties=prompt_only)
    flips_at(1.25, frequency_penalty=0.25, penalties=three_times)
    flips_at(2.5, presence_penalty=-0.5, penalties=three_times)
    flips_at(1.5, logit_bias=((0, -0.5),))
    # bias first, then repetition: (2 - 0.5) / 1.5 - (0.5 + 3 * 0.125)
    flips_at(
        0.125,
        logit_bias=((0, -0.5),),
        repetition_penalty=1.5,
        presence_penalty=0.5,
        frequency_penalty=0.125,
        penalties=three_times,
    )


def test_repetition_lowers_negative_logits_too() -> None:
    executor = executor_of(with_first_row([-2.0, -2.4, -9.0]))
    penalties = PenaltyCounts(ids=[0], output_counts=[1])
    assert outputs_of(executor, [0], RowOptions(repetition_penalty=1.1, penalties=penalties)).tokens == (0,)
    assert outputs_of(executor, [0], RowOptions(repetition_penalty=1.3, penalties=penalties)).tokens == (1,)
    executor.close()


def test_output_j_counts_the_proposals_before_it() -> None:
    """All rows like token 3 best. Proposals 3, 3 after a first 0: its logit 1.0 falls by 0.3 per accepted 3."""
    logits = np.full((5, 5), -9.0, np.float32)
    logits[:, 3], logits[:, 2] = 1.0, 0.5
    executor = executor_of(logits)
    options = RowOptions(frequency_penalty=0.3, penalties=PenaltyCounts(ids=[0], output_counts=[0]))
    found = outputs_of(executor, [1, 0, 3, 3], options, outputs=3)
    assert found.tokens == (3, 3, 2)  # 1.0, 0.7, then 0.4 against 0.5
    executor.close()


def test_a_neighbour_with_penalties_changes_nothing(isa: str) -> None:
    random = np.random.default_rng(8)
    executor = executor_of(random.standard_normal((64, 64)).astype(np.float32), isa, threads=2)
    mine = plan_row([5] * 40, options=RowOptions(temperature=1.0, seed=9, top_p=0.9, logprobs=3), groups=0)
    loud = RowOptions(
        temperature=3.0,
        seed=9,
        repetition_penalty=9.0,
        logit_bias=((5, 100.0),),
        penalties=PenaltyCounts(ids=list(range(64)), output_counts=[7] * 64),
    )
    neighbours = [plan_row([6] * 40, options=loud, groups=0) for _ in range(3)]
    executor.submit(step(mine))
    alone = executor.collect().rows[0]
    executor.submit(step(neighbours[0], neighbours[1], mine, neighbours[2]))
    assert executor.collect().rows[2] == alone
    executor.close()


def test_seeds_repeat_and_differ(isa: str) -> None:
    executor = executor_of(np.zeros((100, 100), np.float32), isa)
    drawn = {}
    for name, seed, choice in (
        ("a", 1, 0),
        ("b", 2, 0),
        ("choice", 1, 1),
        ("high", 1 + 2**32, 0),
        ("max", 2**64 - 1, 0),
    ):
        drawn[name] = many_draws(executor, RowOptions(temperature=1.0, seed=seed, choice=choice), 50)
        again = many_draws(executor, RowOptions(temperature=1.0, seed=seed, choice=choice), 50)
        assert drawn[name] == again
    assert len({tuple(tokens) for tokens in drawn.values()}) == len(drawn)
    # One at a time, at the same positions: the same draws.
    options = RowOptions(temperature=1.0, seed=1)
    singly = [outputs_of(executor, [0], options, start=at).tokens[0] for at in range(50)]
    assert singly == drawn["a"]
    executor.close()


def test_all_instruction_sets_draw_the_same_from_equal_logits() -> None:
    """Noise begins as integers; sums within rounding of each other are too rare to occur here."""
    if len(supported_isas()) < 2:
        pytest.skip("one instruction set only")
    random = np.random.default_rng(5)
    logits = (2 * random.standard_normal((777, 777))).astype(np.float32)
    found = []
    for isa in supported_isas():
        executor = executor_of(logits, isa)
        found.append(many_draws(executor, RowOptions(temperature=1.0, seed=3), 500))
        executor.close()
    assert all(draws == found[0] for draws in found)


def random_options(random: np.random.Generator, vocab: int) -> RowOptions:
    def sometimes(value: float, off: float) -> float:
        return value if random.random() < 0.4 else off

    ids = sorted(random.choice(vocab, 9, replace=False).tolist())
    presence, frequency = sometimes(random.uniform(-2, 2), 0.0), sometimes(random.uniform(-2, 2), 0.0)
    repetition = sometimes(random.uniform(0.5, 2), 1.0)
    penalised = presence != 0 or frequency != 0 or repetition != 1
    return RowOptions(
        temperature=float(random.uniform(0.2, 3)),
        top_k=int(sometimes(random.integers(1, 50), 0)),
        top_p=sometimes(random.uniform(0.05, 1), 1.0),
        min_p=sometimes(random.uniform(0, 0.3), 0.0),
        repetition_penalty=repetition,
        presence_penalty=presence,
        frequency_penalty=frequency,
        logit_bias=((3, 4.0), (vocab - 1, -2.0)) if random.random() < 0.3 else (),
        seed=int(random.integers(0, 2**63)),
        choice=int(random.integers(0, 128)),
        logprobs=4,
        penalties=PenaltyCounts(ids=ids, output_counts=random.integers(0, 4, 9).tolist()) if penalised else None,
        masks=random_masks(random, vocab, 5) if random.random() < 0.4 else None,
    )


def random_masks(random: np.random.Generator, vocab: int, outputs: int) -> tuple[bytes | None, ...]:
    """Some outputs without a mask, some with few tokens, one with none at all."""
    counts = [0, 1, 3, vocab // 2, None]
    return tuple(
        None if count is None else only(random.choice(vocab, count, replace=False).tolist(), vocab)
        for count in random.choice(np.array(counts, dtype=object), outputs)
    )


def test_the_whole_sampler_equals_the_numpy_reference(isa: str) -> None:
    """300 random combinations of options, five outputs each, proposals included: equal tokens and log-probabilities."""
    vocab = 203
    random = np.random.default_rng(17)
    logits = (3 * random.standard_normal((vocab, vocab))).astype(np.float32)
    executor = executor_of(logits, isa)
    for _ in range(300):
        options = random_options(random, vocab)
        tokens = random.integers(0, vocab, 8).tolist()
        start = int(random.integers(0, 5000))
        found = outputs_of(executor, tokens, options, start=start, outputs=5)
        assert found.logprobs is not None
        for j in range(5):
            row = logits[tokens[3 + j]]
            proposals = tokens[4 : 4 + j]
            mask = options.masks[j] if options.masks else None
            expected = draw(row.copy(), options, proposals=proposals, position=start + 3 + j + 1, mask=mask)
            assert found.tokens[j] == expected
            logprob = log_probabilities(row.copy(), expected, 4)
            assert found.logprobs[j].token == expected
            assert found.logprobs[j].logprob == pytest.approx(logprob.logprob, abs=2e-6)
            assert [i for i, _ in found.logprobs[j].top] == [i for i, _ in logprob.top]
            assert [p for _, p in found.logprobs[j].top] == pytest.approx([p for _, p in logprob.top], abs=2e-6)
    executor.close()


def test_log_probabilities_are_the_models_own() -> None:
    """From raw logits, before bias, penalties, temperature and cuts; ties to the lowest id; 0 asks for no others."""
    row = [math.log(p) for p in PROBABILITIES]
    executor = executor_of(with_first_row(row))
    options = RowOptions(temperature=0.5, top_k=1, logit_bias=((2, 50.0),), logprobs=6)
    found = outputs_of(executor, [0], options)
    assert found.tokens == (2,)
    assert found.logprobs is not None
    assert found.logprobs[0].logprob == pytest.approx(math.log(0.1), abs=1e-6)
    assert [token for token, _ in found.logprobs[0].top] == [1, 3, 5, 2, 0, 4]
    none = outputs_of(executor, [0], RowOptions(logprobs=0))
    assert none.logprobs is not None
    assert none.logprobs[0].top == ()
    assert outputs_of(executor, [0], RowOptions()).logprobs is None
    executor.close()


@pytest.mark.parametrize("bad", [[math.nan] * 9, [math.inf] * 9, [-math.inf] * 9, [math.nan, math.inf, -math.inf] * 3])
def test_logits_that_are_not_numbers_do_not_crash(isa: str, bad: list[float]) -> None:
    executor = executor_of(with_first_row(bad), isa)
    for options in (
        RowOptions(logprobs=5),
        RowOptions(temperature=1.0, seed=1, logprobs=5),
        RowOptions(temperature=1.0, top_k=4, top_p=0.5, min_p=0.1, seed=1),
        RowOptions(temperature=1e-4, top_p=0.5, seed=1),
        RowOptions(repetition_penalty=2.0, penalties=PenaltyCounts(ids=[0, 1], output_counts=[1, 0])),
    ):
        assert 0 <= outputs_of(executor, [0], options).tokens[0] < 9
    executor.close()


def test_nan_never_wins(isa: str) -> None:
    row = [math.nan] * 21
    row[13] = -4.0
    executor = executor_of(with_first_row(row), isa)
    assert outputs_of(executor, [0], RowOptions()).tokens == (13,)
    assert set(many_draws(executor, RowOptions(temperature=2.0, seed=1), 200)) == {13}
    executor.close()

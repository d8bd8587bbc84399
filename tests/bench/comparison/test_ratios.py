"""Ratios of two sides: exact where they can be, and intervals that hold what they promise."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.bench.figures.records import answered, failed
from tidemill.bench.comparison.ratios import FIGURES, Ratio, Round, paired, ratio_of
from tidemill.bench.comparison.verdict import comparison_lines, comparison_values
from tidemill.bench.load.record import RequestRecord

FIGURE = {figure.name: figure for figure in FIGURES}
Side = Callable[[int, int], float]
"""TTFT of a request, by round and index."""


def rounds(count: int, a: Side, b: Side, requests: int = 30) -> list[Round]:
    def side(number: int, first: Side) -> list[RequestRecord]:
        return [answered(k, due=k / 2, first=first(number, k)) for k in range(requests)]

    return [Round(a=side(r, a), b=side(r, b), a_seconds=10.0, b_seconds=10.0) for r in range(count)]


def ratio(name: str, measured: list[Round]) -> Ratio:
    found = ratio_of(FIGURE[name], measured, seed=1)
    assert found is not None
    return found


def test_twice_as_slow_is_twice_as_slow_whatever_the_machine_does() -> None:
    """Each round is ten times as slow as the one before, on both sides: a pooled ratio would be that of the last."""
    measured = rounds(4, lambda r, k: 10.0**r * (1 + k % 3), lambda r, k: 2 * 10.0**r * (1 + k % 3))
    for stat in ("mean", "p50", "p95"):
        found = ratio(f"ttft_{stat}", measured)
        assert found.ratio == pytest.approx(2.0)
        assert found.low is not None
        assert found.high is not None
        assert found.low <= 2.0 <= found.high
        assert found.b_is_better is False


def test_pairs_are_drawn_together() -> None:
    """Requests differ by a thousand, B is 5 % slower on each: seen only if the same requests are drawn of both."""
    measured = rounds(3, lambda _r, k: 1.05**k, lambda _r, k: 1.05 * 1.05**k, requests=100)
    assert paired(measured)
    found = ratio("ttft_mean", measured)
    assert found.told_apart
    assert found.low == pytest.approx(1.05)
    assert found.high == pytest.approx(1.05)
    loose = [Round(a=one.a, b=[*one.b, answered(100, first=1.05**101)], a_seconds=10, b_seconds=10) for one in measured]
    assert not paired(loose)
    assert not ratio("ttft_mean", loose).told_apart


def test_two_of_a_kind_are_told_apart_in_one_case_of_twenty() -> None:
    wrong = 0
    draw = random.Random(5)
    for seed in range(60):
        same = rounds(6, lambda _r, _k: draw.expovariate(1.0), lambda _r, _k: draw.expovariate(1.0), requests=40)
        wrong += ratio_of(FIGURE["ttft_mean"], same, seed=seed).told_apart  # type: ignore[union-attr]
    assert wrong <= 8  # 3 expected; more than 8 of 60 has a chance of 1 in 200


def test_a_drift_between_rounds_widens_the_interval() -> None:
    """B is half as slow in one round and twice in the other: nothing can be said."""
    measured = rounds(6, lambda _r, _k: 1.0, lambda r, _k: (0.5, 2.0)[r % 2])
    found = ratio("ttft_p50", measured)
    assert found.ratio == pytest.approx(1.0)
    assert found.low is not None
    assert found.low < 0.8
    assert not found.told_apart


def test_throughput_is_drawn_by_rounds() -> None:
    one = Round(a=[answered(0, tokens=10)], b=[answered(0, tokens=20)], a_seconds=2.0, b_seconds=2.0)
    alone = ratio("tokens_per_second", [one])
    assert (alone.a, alone.b, alone.ratio, alone.low) == (5.0, 10.0, pytest.approx(2.0), None)
    assert not alone.told_apart
    three = ratio("tokens_per_second", [one] * 3)
    assert (three.low, three.high, three.b_is_better) == (pytest.approx(2.0), pytest.approx(2.0), True)
    lost = Round(a=[answered(0, tokens=10)], b=[failed(0)], a_seconds=2.0, b_seconds=2.0)
    assert ratio_of(FIGURE["tokens_per_second"], [lost], seed=0) is None
    assert ratio_of(FIGURE["ttft_mean"], [lost], seed=0) is None


def test_the_text_says_what_the_values_say() -> None:
    values = comparison_values(("one", "two"), rounds(3, lambda _r, k: 1.0 + k % 2, lambda _r, k: 3.0 + k % 2))
    assert values["ratios"]["ttft_p95"] == {
        "a": 2000.0, "b": 4000.0, "ratio": 2.0, "interval": [2.0, 2.0], "told_apart": True, "better": "a",
    }  # fmt: skip
    assert "ttft_mean" in values["differs"]
    assert "itl_mean" in values["cannot_be_told_apart"]
    text = "\n".join(comparison_lines(values))
    assert "A is better" in text
    assert "cannot be told apart" in text
    assert "request by request" in text
    assert "know little" in text

"""Figures of traces whose answers are known by hand or by a direct count."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.bench.traces.ceiling import prefix_hits
from tidemill.bench.traces.figures import TraceFigures, fano_factor, gap_variation
from tidemill.bench.traces.row import Segment, TraceRow
from tidemill.bench.traces.trace import Trace


def row(prompt: int, *pieces: tuple[str, int], at: float = 0.0, tenant: str | None = None, **more: object) -> TraceRow:
    prefix = tuple(Segment(name, tokens) for name, tokens in pieces)
    return TraceRow(at=at, prompt_tokens=prompt, output_tokens=10, prefix=prefix, tenant=tenant, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rows", "block", "hits"),
    [
        ([row(100, ("a", 100)), row(100, ("a", 100))], 1, [0, 99]),  # the last token is always computed
        ([row(100, ("a", 100)), row(100, ("a", 100))], 16, [0, 96]),
        ([row(96, ("a", 96)), row(96, ("a", 96))], 16, [0, 80]),
        ([row(100, ("a", 40)), row(100, ("a", 40))], 16, [0, 32]),  # what is not named is its own
        (
            [row(100, ("a", 40), ("b", 20)), row(100, ("a", 40), ("c", 20)), row(90, ("a", 40), ("b", 20))],
            1,
            [0, 40, 60],
        ),
        ([row(60, ("a", 40), ("b", 20)), row(60, ("b", 20), ("a", 40))], 1, [0, 0]),  # equal ids after other beginnings
        ([row(512, ("a", 512)), row(100, ("a", 100)), row(600, ("a", 512), ("b", 88))], 1, [0, 99, 512]),
        ([row(200, ("a", 100), ("b", 90)), row(200, ("a", 50), ("b", 90))], 1, [0, 50]),
        (
            [row(50, ("a", 50), tenant="x"), row(50, ("a", 50), tenant="y"), row(50, ("a", 50), tenant="x")],
            1,
            [0, 0, 49],
        ),
    ],
)
def test_the_ceiling(rows: list[TraceRow], block: int, hits: list[int]) -> None:
    assert prefix_hits(rows, block) == hits


def test_answers_can_be_found_too() -> None:
    """A turn names the whole turn before and then a piece as long as its answer, of 10 tokens."""
    first = row(64, ("q", 64), session="s")
    second = row(100, ("q", 64), ("a", 10), ("r", 26), session="s", turn=1)
    assert prefix_hits([first, second], 1) == [0, 64]
    assert prefix_hits([first, second], 1, answers=True) == [0, 73]  # the answer's last token was never read
    assert prefix_hits([first, second], 8, answers=True) == [0, 72]
    others = [
        row(100, ("q", 64), ("a", 11), ("r", 25), session="s", turn=1),  # another answer
        row(100, ("q", 64), ("a", 10), ("r", 26), session="t", turn=1),  # another session
        row(100, ("q", 64), session="s", turn=1),  # an answer without a name
    ]
    for other in others:
        assert prefix_hits([first, other], 1, answers=True) == [0, 64]
    unnamed = row(70, ("q", 64), session="s")
    assert prefix_hits([unnamed, second], 1, answers=True) == [0, 64]


@given(
    prompts=st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=8), min_size=1, max_size=12),
    block=st.sampled_from([1, 2, 4, 8, 16]),
)
@settings(deadline=None)
def test_the_ceiling_is_that_of_a_cache_of_token_blocks(prompts: list[list[str]], block: int) -> None:
    """Against the plainest cache there is: a set of beginnings, each token spelled out."""
    size = 3
    cache: set[str] = set()
    expected = []
    for prompt in prompts:
        text = "".join(piece * size for piece in prompt)
        found = 0
        while found + block <= len(text) - 1 and text[: found + block] in cache:
            found += block
        expected.append(found)
        cache |= {text[:end] for end in range(1, len(text) + 1)}
    rows = [row(size * len(prompt), *((piece, size) for piece in prompt)) for prompt in prompts]
    assert prefix_hits(rows, block) == expected


def test_gaps_and_windows() -> None:
    even = np.arange(0.0, 101.0)
    assert gap_variation(even) == 0
    assert fano_factor(even, 10.0) == 0
    assert fano_factor(even, 30.0) is None
    bursts = np.repeat(np.arange(0.0, 100.0, 10.0), 10)
    assert fano_factor(bursts + 1e-6, 10.0) == 0
    assert fano_factor(bursts, 5.0) == pytest.approx(5.0, rel=0.1)  # 10 and 0 in turn: variance 25, mean 5
    assert gap_variation(np.array([1.0, 1.0, 1.0])) is None
    poisson = np.cumsum(np.random.default_rng(0).exponential(size=20_000))
    assert gap_variation(poisson) == pytest.approx(1, abs=0.03)
    assert fano_factor(poisson, 10.0) == pytest.approx(1, abs=0.1)


def test_figures_of_a_small_trace() -> None:
    rows = (
        row(100, ("s", 64), at=0.0, session="a"),
        row(150, ("s", 64), ("x", 50), at=4.0, session="a", turn=1, think=3.0),
        row(80, at=6.0, tenant="t"),
    )
    found = TraceFigures.of(Trace(rows=rows, name="n", format="f", notes=("2 rows",)), block=16)
    values = found.values
    assert (values["requests"], values["span_s"], values["rate_rps"]) == (3, 6.0, 0.33333)
    assert values["prompt_tokens"]["p50"] == 100
    assert values["sessions"] == {"count": 1, "turns_mean": 2.0, "turns_max": 2, "think_s": {"p50": 3.0, "p90": 3.0}}
    prefix = {"block_tokens": 16, "named_share": 0.53939, "ceiling": 0.19394, "ceiling_with_answers": 0.19394}
    assert values["prefix"] == prefix  # 178 and 64 of 330
    assert values["tenants"] == {"t": 1}
    text = "\n".join(found.lines())
    assert "3 in 6.0 s, 0.333 per second" in text
    assert "2.00 turns on average, 2 at most; think p50 3 s" in text
    assert text.endswith("note       2 rows")

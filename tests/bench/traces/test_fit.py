"""Models find again what traces made by other rules are like, and make as much as asked for, the same for one seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bench.traces.made import blocks, bursts, poisson, requests, returns, talks, tides, trace_of
from tidemill.bench.traces.ceiling import prefix_hits
from tidemill.bench.traces.compare import Comparison, ks_distance
from tidemill.bench.traces.figures import TraceFigures, fano_factor, gap_variation
from tidemill.bench.traces.fit import fit_model
from tidemill.bench.traces.fit_arrivals import clock_step, fit_arrivals
from tidemill.bench.traces.model import load_model, model_json, packaged
from tidemill.bench.traces.quantiles import at_rank, mean_of, quantiles_of
from tidemill.bench.traces.row import TraceRow
from tidemill.bench.traces.synth import synthesised
from tidemill.core.errors import SetupError


def compared(trace: Any, *, seed: int = 1, block: int = 1) -> dict[str, Any]:
    return Comparison.of(trace, synthesised(fit_model(trace), seed=seed), block=block).values


def ratio(values: dict[str, Any], *path: str) -> float:
    real, made = values["real"], values["synthetic"]
    for name in path:
        real, made = real[name], made[name]
    return float(made / real)


# -- arrivals


def test_poisson_arrivals_stay_poisson() -> None:
    """What is chance in the counts of the windows must not come back as a profile of its own."""
    real = poisson(4.0, 12_000)
    model = fit_arrivals(real)
    assert model.shape == pytest.approx(1, rel=0.05)
    assert np.std(model.rates) / np.mean(model.rates) < 0.1  # a window's count has 20 % of chance
    made = model.drawn(np.random.default_rng(1), duration=model.span)
    assert len(made) == pytest.approx(12_000, rel=0.04)
    for window in (1.0, 10.0, 60.0):
        found = fano_factor(made, window)
        assert found is not None
        assert 0.7 < found < 1.5


def test_a_profile_is_found_again() -> None:
    real = tides(4000)
    model = fit_arrivals(real)
    made = model.drawn(np.random.default_rng(1), duration=model.span)
    assert ks_distance(np.diff(real), np.diff(made)) < 0.03
    assert ks_distance(real, made) < 0.03
    for window in (1.0, 10.0, 25.0):
        was, found = fano_factor(real, window), fano_factor(made, window)
        assert was is not None
        assert found == pytest.approx(was, rel=0.2)
    assert fano_factor(real, 25.0) > 20  # the test would see a profile that was lost


def test_bursts_keep_their_number() -> None:
    """Gaps that begin in a burst and end in the next would make a model miss the number of requests."""
    real = bursts(60)
    model = fit_arrivals(real)
    made = [len(model.drawn(np.random.default_rng(seed), duration=model.span)) for seed in range(100, 140)]
    assert np.mean(made) == pytest.approx(len(real), rel=0.03)


@pytest.mark.parametrize("shape", [0.25, 4.0])
def test_gamma_gaps_are_found_again(shape: float) -> None:
    real = np.cumsum(np.random.default_rng(0).gamma(shape, 1 / shape, 10_000))
    model = fit_arrivals(real)
    made = model.drawn(np.random.default_rng(1), duration=model.span)
    assert ks_distance(np.diff(real), np.diff(made)) < 0.03
    assert gap_variation(made) == pytest.approx(shape**-0.5, rel=0.15)
    assert fano_factor(made, 50.0) == pytest.approx(fano_factor(real, 50.0), rel=0.35)


def test_short_gaps_in_runs_are_found_again() -> None:
    """Half of the gaps are ten times as long as the others, in runs of ten: without memory windows would be calmer."""
    numbers = np.random.default_rng(0)
    kinds = np.repeat(numbers.permutation(np.repeat([0.1, 1.0], 500)), 10)
    real = np.cumsum(numbers.exponential(kinds))
    model = fit_arrivals(real)
    assert model.memory > 0.15
    made = model.drawn(np.random.default_rng(1), duration=model.span)
    assert fano_factor(made, 5.0) == pytest.approx(fano_factor(real, 5.0), rel=0.3)


def test_the_clock_of_the_stamps() -> None:
    real = poisson(4.0, 8000)
    for step in (1.0, 3.0):
        stamped = np.floor(real / step) * step
        assert clock_step(stamped) == step
        model = fit_arrivals(stamped)
        made = model.drawn(np.random.default_rng(1), duration=model.span)
        assert set(np.mod(made, step)) == {0.0}
        assert ks_distance(np.diff(stamped), np.diff(made)) < 0.03
        assert fano_factor(made, 10 * step) == pytest.approx(1, abs=0.35)
    assert clock_step(real) == 0
    assert clock_step(np.round(real, 3)) == 0


def test_as_long_as_fast_and_as_many_as_asked_for() -> None:
    model = fit_model(requests(poisson(4.0, 4000)))
    assert len(synthesised(model, count=777).rows) == 777
    longer = synthesised(model, duration=3000.0)
    assert len(longer.rows) == pytest.approx(12_000, rel=0.05)  # the profile of 1,000 s three times
    assert 2990 < longer.rows[-1].at < 3000
    assert len(synthesised(model, duration=100.0, rate=40.0).rows) == pytest.approx(4000, rel=0.1)
    assert TraceFigures.of(synthesised(model, rate=0.5, count=2000)).values["rate_rps"] == pytest.approx(0.5, rel=0.1)
    both = synthesised(model, duration=50.0, count=1000)
    assert len(both.rows) == pytest.approx(1000, rel=0.1)
    assert both.rows[-1].at < 50
    swinging = fit_model(requests(tides(4000)))  # rates of 5 to 9 in the first 50 s, below 5 in the next
    assert len(synthesised(swinging, duration=50.0, rate=40.0).rows) == pytest.approx(2000, rel=0.1)
    assert synthesised(swinging, count=2000, rate=40.0).rows[-1].at == pytest.approx(50, rel=0.1)
    assert len(synthesised(swinging, duration=50.0).rows) == pytest.approx(50 * 7.5, rel=0.15)
    for wrong in ({"duration": 0.0}, {"rate": -1.0}, {"rate": float("nan")}, {"count": 0}):
        with pytest.raises(SetupError, match="is not above 0"):
            synthesised(model, **wrong)  # type: ignore[arg-type]


def test_ticks_can_be_left_out() -> None:
    model = fit_model(requests(np.floor(poisson(4.0, 4000))))
    assert all(row.at == int(row.at) for row in synthesised(model, count=500).rows)
    assert not all(row.at == int(row.at) for row in synthesised(model, count=500, ticks=False).rows)


# -- lengths


def test_lengths_and_how_they_go_together() -> None:
    found = compared(requests(poisson(4.0, 8000)))
    assert found["ks"]["prompt_tokens"] < 0.025
    assert found["ks"]["output_tokens"] < 0.025
    assert found["synthetic"]["length_correlation"] == pytest.approx(found["real"]["length_correlation"], abs=0.05)
    assert found["real"]["length_correlation"] > 0.7
    for what in ("prompt_tokens", "output_tokens"):
        assert ratio(found, what, "mean") == pytest.approx(1, rel=0.05)
        assert ratio(found, what, "p99") == pytest.approx(1, rel=0.15)


def test_lengths_that_many_requests_have_stay_exact() -> None:
    rows = [TraceRow(at=place, prompt_tokens=(7, 5000)[place % 3 == 0], output_tokens=1) for place in range(3000)]
    made = synthesised(fit_model(trace_of(rows)), seed=1)
    exact = [row.prompt_tokens for row in made.rows if row.prompt_tokens in {7, 5000}]
    assert len(exact) > 0.98 * len(made.rows)
    assert exact.count(5000) / len(exact) == pytest.approx(1 / 3, abs=0.03)


def test_quantiles_are_values_that_occur() -> None:
    assert set(quantiles_of([7] * 10 + [5000] * 5)) == {7, 5000}
    assert (quantiles_of([3, 1, 2])[0], quantiles_of([3, 1, 2])[-1]) == (1, 3)
    assert mean_of(quantiles_of(np.arange(1, 1001))) == pytest.approx(500, rel=0.01)
    assert at_rank(quantiles_of(np.arange(1, 1001)), 0.25) == pytest.approx(250, rel=0.01)


# -- sessions


def test_sessions_grow_pause_and_share() -> None:
    real = talks(2500)
    found = compared(real, block=16)
    assert ratio(found, "requests") == pytest.approx(1, rel=0.08)
    assert ratio(found, "sessions", "turns_mean") == pytest.approx(1, rel=0.06)
    assert ratio(found, "sessions", "think_s", "p50") == pytest.approx(1, rel=0.1)
    assert ratio(found, "prompt_tokens", "mean") == pytest.approx(1, rel=0.06)
    assert found["ks"]["prompt_tokens"] < 0.05
    assert found["ks"]["output_tokens"] < 0.03
    assert found["synthetic"]["prefix"]["ceiling"] == pytest.approx(found["real"]["prefix"]["ceiling"], abs=0.02)
    assert found["real"]["prefix"]["ceiling"] > 0.5
    with_answers = [found[name]["prefix"]["ceiling_with_answers"] for name in ("real", "synthetic")]
    assert with_answers[1] == pytest.approx(with_answers[0], abs=0.02)
    assert with_answers[0] > found["real"]["prefix"]["ceiling"] + 0.1
    gold = found["synthetic"]["tenants"]["gold"] / found["synthetic"]["requests"]
    assert gold == pytest.approx(0.25, abs=0.04)


def test_made_sessions_are_whole() -> None:
    made = synthesised(fit_model(talks(400)), seed=3)
    last: dict[str, TraceRow] = {}
    for row in made.rows:
        assert row.session is not None
        assert row.priority == (row.tenant == "gold")
        before = last.get(row.session)
        if before is None:
            assert (row.turn, row.think) == (0, None)
        else:
            assert row.turn == before.turn + 1
            assert row.think is not None
            assert row.prefix[: len(before.prefix)] == before.prefix
            assert row.prefix[len(before.prefix)].tokens == before.output_tokens
            assert row.prompt_tokens > before.prompt_tokens + before.output_tokens
        assert sum(piece.tokens for piece in row.prefix) == row.prompt_tokens
        last[row.session] = row


def test_sessions_that_carry_nothing() -> None:
    rows = [
        TraceRow(
            at=float(place), prompt_tokens=100 + place % 7, output_tokens=50, session=str(place // 3), turn=place % 3
        )
        for place in range(900)
    ]
    model = fit_model(trace_of(rows))
    assert model.talks is not None
    assert not model.talks.carried
    made = synthesised(model, seed=1)
    assert {row.prompt_tokens for row in made.rows} <= set(range(100, 107))
    assert not any(row.prefix for row in made.rows)


# -- shared blocks


def test_blocks_are_shared_as_much() -> None:
    real = blocks(4000)
    model = fit_model(real)
    assert model.sharing is not None
    assert model.sharing.block == 64
    assert [(item.tokens, item.after) for item in model.sharing.beginnings] == [(128, -1)]
    assert model.sharing.continued is not None
    assert model.sharing.continued.share == pytest.approx(0.4, abs=0.05)
    found = compared(real, block=64)
    assert found["synthetic"]["prefix"]["ceiling"] == pytest.approx(found["real"]["prefix"]["ceiling"], abs=0.03)
    assert found["real"]["prefix"]["ceiling"] > 0.3
    assert found["ks"]["prompt_tokens"] < 0.03


def test_nothing_continues_what_came_before_the_trace() -> None:
    """The real trace shares nothing in its first third; so has the made one, and yet as much in all."""
    real = returns(3000)
    found = [synthesised(fit_model(real), seed=seed) for seed in (1, 2)]
    was = sum(prefix_hits(real.rows, 64))
    assert sum(prefix_hits(real.rows[:900], 64)) == 0
    for made in found:
        share = sum(row.prompt_tokens for row in real.rows) / sum(row.prompt_tokens for row in made.rows)
        assert share * sum(prefix_hits(made.rows, 64)) == pytest.approx(was, rel=0.1)
        early = [row for row in made.rows if row.at < real.rows[900].at]
        assert sum(prefix_hits(early, 64)) < 0.02 * was


def test_distances() -> None:
    assert ks_distance([1, 2, 3], [3, 2, 1]) == 0
    assert ks_distance([0, 0], [1, 1]) == 1
    assert ks_distance([1, 2, 3, 4], [3, 4, 5, 6]) == 0.5
    assert ks_distance([1], [1, 2, 2, 2]) == 0.75


def test_common_beginnings_keep_their_tree() -> None:
    real = talks(1000)
    sharing = fit_model(real).sharing
    assert sharing is not None
    assert [(item.tokens, item.after) for item in sharing.beginnings] == [(200, -1), (300, 0)]
    assert sharing.beginnings[1].share == pytest.approx(0.25, abs=0.05)


@given(seed=st.integers(0, 2**32), count=st.integers(1, 200))
@settings(max_examples=25, deadline=None)
def test_whatever_is_made_is_a_trace(seed: int, count: int) -> None:
    for model in MODELS:
        made = synthesised(model, seed=seed, count=count)
        assert made == synthesised(model, seed=seed, count=count)
        assert len(made.rows) == count
        ats = [row.at for row in made.rows]
        assert ats == sorted(ats)
        assert ats[0] >= 0
        for row in made.rows:
            assert min(row.prompt_tokens, row.output_tokens) >= 1
            assert all(piece.tokens >= 1 for piece in row.prefix)
            assert sum(piece.tokens for piece in row.prefix) <= row.prompt_tokens


MODELS = [fit_model(trace) for trace in (talks(300), blocks(300), requests(tides(200)), requests([0.0] * 20))]


def test_seeds_differ() -> None:
    for model in MODELS:
        assert synthesised(model, seed=1, count=50).rows != synthesised(model, seed=2, count=50).rows


# -- models as files


def test_a_model_is_read_back_as_written(tmp_path: Path) -> None:
    for number, model in enumerate(MODELS):
        path = tmp_path / f"{number}.json"
        path.write_bytes(model_json(model))
        assert load_model(str(path)) == model
    assert MODELS[3].notes == ("the trace has no arrivals: Poisson arrivals at one a second are presumed",)


def test_too_little_to_fit() -> None:
    with pytest.raises(SetupError, match="made: 9 requests are too few to fit; 10 are the fewest"):
        fit_model(requests(poisson(1.0, 9)))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("version",), 2, "version 2 is not 1"),
        (("arrivals", "rates"), [], "arrivals: window and rates have to be above 0"),
        (("arrivals", "rates"), [1.0, -1.0, 5.0], "arrivals.rates: below 0 or not finite"),
        (("arrivals", "shape"), 0.0, "arrivals: shape, memory or step out of range"),
        (("arrivals", "borders"), [1.0] * 9, "arrivals.borders: there has to be one between"),
        (("lengths", "first"), [1.0], "lengths.first: 1 quantiles where there have to be"),
        (("lengths", "pairs"), [[0]], "lengths.pairs: has to be a table of counts"),
        (("lengths", "pairs"), [[1, 2], [3]], "lengths.pairs: has to be a table of counts"),
        (("talks", "turns"), [0], "talks.turns: has to have a session"),
        (("sharing", "beginnings", 0, "after"), 0, "sharing.beginnings[0]: goes on from a later one"),
        (("requests",), "many", "no model of a trace (Expected `int`, got `str` - at `$.requests`)"),
    ],
)
def test_damaged_models_are_refused(tmp_path: Path, path: tuple[Any, ...], value: Any, message: str) -> None:
    content = msgspec.json.decode(model_json(MODELS[0]))
    place = content
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    file = tmp_path / "model.json"
    file.write_bytes(msgspec.json.encode(content))
    with pytest.raises(SetupError) as caught:
        load_model(str(file))
    assert message in caught.value.message
    assert "trace fit" in caught.value.message
    with pytest.raises(
        SetupError, match="none: No such file or directory; name a file that `trace fit` wrote, or one of"
    ):
        load_model("none")


@pytest.mark.parametrize("name", packaged())
def test_packaged_models_work_with_no_download(name: str) -> None:
    model = load_model(name)
    made = synthesised(model, seed=1, rate=2.0, duration=600.0)
    assert made.rows
    assert any(word in model.source for word in ("arXiv", "ISCA"))
    assert any(row.prefix for row in made.rows) == (name == "mooncake-conversation")


def test_the_model_of_burstgpt_has_the_published_figures() -> None:
    """Of the paper and its data set: 621 request tokens on average, medians of 110 and 440 response tokens for requests
    of 300 and 2,000, 188 requests in the hour from 16 o'clock and next to none before dawn."""
    made = synthesised(load_model("burstgpt-conv"), seed=0, count=30_000).rows
    prompts = np.array([row.prompt_tokens for row in made])
    outputs = np.array([row.output_tokens for row in made])
    assert prompts.mean() == pytest.approx(621, rel=0.03)
    assert np.median(outputs[(prompts > 250) & (prompts < 350)]) == pytest.approx(110, rel=0.15)
    assert np.median(outputs[prompts > 1950]) == pytest.approx(440, rel=0.1)
    flat = load_model("burstgpt-conv").arrivals
    day = flat.drawn(np.random.default_rng(0), duration=30 * 86_400.0)
    hours = np.bincount((day / 3600).astype(int) % 24, minlength=24) / 30
    assert hours[16] == pytest.approx(188, rel=0.15)
    assert hours[4] < 15

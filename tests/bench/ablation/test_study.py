"""The ablation over a modelled system, whose figures follow from its settings and the rate."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

import tidemill.executors.strategies
import tidemill.scheduling.strategies  # noqa: F401 (both fill the registry)
from tidemill.bench.ablation.contests import chosen, contests
from tidemill.bench.ablation.point import BETTER, Point, median_point
from tidemill.bench.ablation.report import lines, values
from tidemill.bench.ablation.study import Ablation, Study
from tidemill.bench.figures.slo import parse_slo
from tidemill.bench.figures.summary import figures
from tidemill.bench.load.lateness import ClientLoad
from tidemill.bench.load.record import Arrived, Outcome, RequestRecord
from tidemill.bench.load.run import Run
from tidemill.bench.sweep.knee import KneeSearch
from tidemill.core.config import EngineConfig, ModelConfig

DEFAULT = EngineConfig(model=ModelConfig(path="m.gguf"))
CAPACITY = {"static": 2.0, "static-compacted": 3.0, "dynamic": 4.0, "continuous": 10.0}


def model(config: EngineConfig, rate: float) -> Point:
    """A server whose capacity is a product of what is on, and whose latency is that of a queue."""
    capacity = CAPACITY[config.scheduler.policy]
    capacity *= 1.0 if config.scheduler.chunked_prefill else 0.5
    capacity *= 1.0 if config.executor.numerics == "fast" else 0.8
    busy = rate / capacity
    latency = 100.0 / (1 - busy) if busy < 0.999 else 1e5
    return Point(
        rate=rate,
        share=1.0 if busy <= 0.9 else 0.0,
        mean_ms=latency,
        p99_ms=4 * latency,
        ttft_ms=latency / 10,
        ttft_p99_ms=latency / 5,
        tokens_per_second=100 * min(rate, capacity),
        goodput=rate if busy <= 0.9 else 0.0,
    )


def study(*names: str, measure: Callable[[EngineConfig, float], Point] = model, **settings: object) -> Ablation:
    made = contests(DEFAULT, chosen(names))
    search = lambda: KneeSearch(start=1.0, least=0.1, most=100.0, precision=1.02)  # noqa: E731
    return Study(contests=made, measure=measure, search=search, **settings).run()  # type: ignore[arg-type]


def by_name(found: Ablation) -> dict[str, dict[str, object]]:
    return {row["name"]: row for row in values(found)["rows"]}


def test_each_row_has_the_gain_that_was_built_in() -> None:
    rows = {row.contest.name: row for row in study().rows}
    gains = {name: row.gain for name, row in rows.items()}
    assert gains["continuous-batching (static)"] == pytest.approx(5.0, rel=0.03)
    assert gains["continuous-batching (dynamic)"] == pytest.approx(2.5, rel=0.03)
    assert gains["chunked-prefill (off)"] == pytest.approx(2.0, rel=0.03)
    assert gains["prefix-cache (off)"] == 1.0
    assert gains["all together"] == pytest.approx(5 * 2 / 0.8, rel=0.03)
    assert rows["all together"].on.rate == pytest.approx(9.0, rel=0.03)


def test_pairs_are_at_the_twins_rate_and_alternate_which_begins() -> None:
    asked: list[tuple[str, float]] = []

    def noted(config: EngineConfig, rate: float) -> Point:
        asked.append((config.scheduler.policy, rate))
        return model(config, rate)

    row = study("chunked-prefill", measure=noted, pairs=3).rows[0]
    asked.clear()
    row = study("continuous-batching", measure=noted, pairs=3).rows[0]
    assert row.contest.twin == "static"
    rate = row.off.rate
    at_rate = [policy for policy, at in asked if at == rate]
    assert at_rate[-6:] == ["static", "continuous", "continuous", "static", "static", "continuous"]
    assert {point.rate for pair in row.pairs for point in pair} == {rate}
    # 0.9 of 2 requests/s keeps the objectives: latency is 100 / (1 - 0.9) there, and 100 / (1 - 0.18) with 10.
    assert row.ratio("mean_ms") == pytest.approx((1 - 0.9) / (1 - 0.18), rel=0.15)
    assert row.ratio("goodput") == 1.0


def test_searches_take_turns_so_that_no_configuration_has_the_good_hours_to_itself() -> None:
    asked: list[str] = []

    def noted(config: EngineConfig, rate: float) -> Point:
        asked.append(config.scheduler.policy)
        return model(config, rate)

    study("continuous-batching", measure=noted)
    assert asked[:8] == ["static", "continuous", "static-compacted", "dynamic"] * 2


def test_where_a_twin_keeps_the_objectives_at_no_rate_the_row_says_so() -> None:
    def broken(config: EngineConfig, rate: float) -> Point:
        point = model(config, rate)
        return replace(point, share=0.5) if not config.scheduler.chunked_prefill else point

    found = study("chunked-prefill", measure=broken)
    (row,) = found.rows
    assert row.gain is None
    text = "\n".join(lines(values(found)))
    assert "the twin keeps the objectives at no rate that was tried" in text
    assert "none" in text


def test_a_gain_within_the_precision_is_called_none() -> None:
    assert "no difference in the rate" in str(by_name(study())["prefix-cache (off)"]["sentence"])


def test_a_client_that_was_the_bottleneck_spoils_its_row() -> None:
    def late(config: EngineConfig, rate: float) -> Point:
        return replace(model(config, rate), valid=rate < 5)

    rows = by_name(study("continuous-batching", measure=late))
    assert "the row does not count" in str(rows["continuous-batching (static)"]["sentence"])


def test_the_table_has_the_articles_columns_and_a_row_for_each_contest() -> None:
    found = values(study())
    text = list(lines(found))
    head, *rows = text[1].splitlines()
    assert head.split() == "req/s mean ms p99 ms TTFT ms TTFT p99 tok/s goodput with it on".split()  # noqa: SIM905
    assert rows[0].startswith("all off")
    assert rows[-1].startswith("all on")
    assert len(rows) == len(found["rows"]) + 1
    static = next(line for line in rows if line.startswith("continuous-batching (static)"))
    assert float(static.split()[-1].removesuffix("x")) == pytest.approx(5.0, rel=0.03)
    sentences = text[-len(found["rows"]) :]
    assert all(line.startswith(f"{row['name']}: ") for line, row in zip(sentences, found["rows"], strict=True))


def test_the_values_are_json_without_infinities() -> None:
    nothing = replace(model(DEFAULT, 1.0), mean_ms=float("inf"), p99_ms=float("inf"), share=0.0)
    found = values(study("chunked-prefill", measure=lambda _config, rate: replace(nothing, rate=rate)))
    json.loads(json.dumps(found, allow_nan=False))
    assert found["rows"][0]["off"]["at"]["mean_ms"] is None
    assert "neither keeps the objectives" in found["rows"][0]["sentence"]
    assert list(lines(found))


def test_the_median_of_runs_is_taken_figure_by_figure() -> None:
    points = [replace(model(DEFAULT, 1.0), mean_ms=ms, goodput=goodput) for ms, goodput in [(1, 9), (5, 8), (3, 1)]]
    assert (median_point(points).mean_ms, median_point(points).goodput) == (3, 8)
    assert not median_point([*points, replace(points[0], valid=False)]).valid


def record(index: int, *, outcome: Outcome = "ok", first: float = 0.5, tokens: int = 10) -> RequestRecord:
    """One token, and a tenth of a second later the others one by one."""
    due = 0.3 * index
    arrived = [Arrived(due + first + 0.1 * number, 1) for number in range(tokens)] if outcome == "ok" else []
    return RequestRecord(
        index=index,
        due=due,
        sent=due,
        ended=arrived[-1].at if arrived else due,
        outcome=outcome,
        arrived=arrived,
        output_tokens=len(arrived),
        asked_tokens=tokens,
    )


def as_run(*records: RequestRecord) -> Run:
    client = ClientLoad.of(records, open_loop=True, cpu_share=0.1)
    return Run(records=records, seconds=20.0, client=client, complaints=(), open_loop=True)


def test_the_figures_are_those_of_every_other_command() -> None:
    run = as_run(*(record(i, first=0.1 * i, outcome="ok" if i % 7 else "refused") for i in range(40)))
    slo = parse_slo("ttft:p99<2s; itl:p95<150ms")
    point, whole = Point.of(2.0, run, slo), figures(run, slo=slo)
    assert point.share == pytest.approx(whole["slo"]["share"], abs=1e-4)
    assert 0.3 < point.share < 0.6
    assert point.mean_ms == pytest.approx(whole["e2e_ms"]["mean"], abs=1e-2)
    assert point.p99_ms == pytest.approx(whole["e2e_ms"]["p99"], abs=1e-2)
    assert point.ttft_ms == pytest.approx(whole["ttft_ms"]["mean"], abs=1e-2)
    assert point.ttft_p99_ms == pytest.approx(whole["ttft_ms"]["p99"], abs=1e-2)
    assert point.tokens_per_second == pytest.approx(whole["rates"]["output_tokens_per_second"], abs=1e-3)
    assert point.goodput == pytest.approx(whole["slo"]["goodput_requests_per_second"], abs=1e-3)


def test_without_a_single_answer_times_are_infinite_and_there_is_no_throughput() -> None:
    point = Point.of(2.0, as_run(record(0, outcome="error")), parse_slo("ttft:p99<2s"))
    assert (point.mean_ms, point.ttft_p99_ms, point.tokens_per_second, point.share) == (float("inf"),) * 2 + (0.0, 0.0)
    assert set(BETTER) < set(Point.__slots__)

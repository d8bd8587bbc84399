"""Sweeps over rates on scripted servers in virtual time, and their tables and pictures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.bench.test_bench_run import LATE, Stub, stub  # noqa: F401 (a fixture)
from tests.support.virtual_time import run_virtual
from tidemill.bench.figures.slo import parse_slo
from tidemill.bench.job import Job
from tidemill.bench.load.options import LoadOptions
from tidemill.bench.load.prompt_options import PromptOptions
from tidemill.bench.scripted.script import Script, ScriptedAnswer
from tidemill.bench.sweep.attempt import Attempt, at_rate
from tidemill.bench.sweep.knee import KneeSearch
from tidemill.bench.sweep.plot import sweep_svg
from tidemill.bench.sweep.rates import Sweep, sweep_in_turns, sweep_lines, sweep_values
from tidemill.bench.traces.row import TraceRow
from tidemill.cli.main import run
from tidemill.core.errors import ConfigError


def sweeps(*capacities: float) -> tuple[list[Sweep], list[tuple[int, float]]]:
    """Searches of systems that keep everything up to a rate and nothing above; and who was tried, in order."""
    order: list[tuple[int, float]] = []

    def one(capacity: float) -> Sweep:
        async def attempt(rate: float, number: int) -> Attempt:
            assert number == len(order)
            kept = rate <= capacity
            return Attempt(rate=rate, share=float(kept), gave_up=not kept, seconds=1.5, achieved=rate, ttft_p99_ms=9.0,
                           failed=0)  # fmt: skip

        return Sweep(search=KneeSearch(start=1.0), attempt=attempt)

    made = [one(capacity) for capacity in capacities]
    run_virtual(sweep_in_turns(made, on_attempt=lambda place, attempt: order.append((place, attempt.rate))))
    return made, order


def test_targets_take_turns() -> None:
    made, order = sweeps(5.0, 2.0)
    assert [place for place, _ in order[:8]] == [0, 1] * 4
    for sweep, capacity in zip(made, (5.0, 2.0), strict=True):
        values = sweep_values(sweep)
        assert values["highest_rate"] <= capacity < values["lowest_rate_missed"] <= 1.11 * values["highest_rate"]
        assert values["at_highest"]["rate"] == pytest.approx(values["highest_rate"], abs=1e-4)
        rates = [attempt["rate"] for attempt in values["attempts"]]
        assert rates == sorted(rates)


def test_tables_and_pictures() -> None:
    made, _ = sweeps(5.0, 2.0, 0.0)
    values = {name: sweep_values(sweep) for name, sweep in zip("abc", made, strict=True)}
    text = "\n".join(sweep_lines(values["a"]))
    assert "under 0.0%  given up after 1.5 s" in text
    assert f"highest rate with 95% of requests within the objectives: {values['a']['highest_rate']:.4g}/s" in text
    assert "no rate that was tried" in "\n".join(sweep_lines(values["c"]))
    root = ElementTree.fromstring(sweep_svg(values))
    words = [item.text for item in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "c: no rate kept" in words


def test_a_rate_of_a_made_up_load_and_of_a_trace() -> None:
    job = Job(load=LoadOptions(rate="1", requests=9, seed=3), prompts=PromptOptions(), slo=parse_slo("ttft:max<1s"))
    fast = at_rate(job, 6.0, 2)
    assert (fast.load.rate, fast.prompt_seed, fast.load.seed) == ("6", 3002, 3)
    rows = [TraceRow(at=k / 2, prompt_tokens=4, output_tokens=4) for k in range(9)]  # two a second
    traced = replace(job, load=LoadOptions(requests=5), rows=rows)
    assert at_rate(traced, 8.0, 0).load.time_scale == 0.25
    with pytest.raises(ConfigError, match="two requests at different times"):
        at_rate(replace(traced, rows=rows[:1]), 8.0, 0)


def test_a_sweep_of_a_server(stub: Stub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    load = ["--requests", "8", "--prompt-tokens", "4", "--output-tokens", "2", "--warmup", "0", *LATE]
    rates = ["--start-rate", "50", "--most-rate", "100", "--slo", "e2e:max<60s"]
    assert run(["bench", "sweep", "--url", stub.url, *load, *rates, "--out", str(tmp_path), "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert [attempt["rate"] for attempt in values["attempts"]] == [50.0, 100.0]
    assert values["highest_rate"] == 100.0
    prompts = [tuple(seen.body["prompt"]) for seen in stub.server.seen]
    assert len(set(prompts)) == 16  # nothing that a cache has seen
    stored = json.loads((tmp_path / "sweep.json").read_text())
    assert stored["figures"] == values
    assert stored["load"]["requests"] == 8
    assert (tmp_path / "sweep.svg").read_text().startswith("<svg")


def test_a_rate_without_hope_is_given_up(capsys: pytest.CaptureFixture[str]) -> None:
    """One answer in two is refused: the third refusal of 40 requests ends the attempt."""
    served = Stub(Script(answers=(ScriptedAnswer(status=429, message="full"), ScriptedAnswer())))
    load = ["--requests", "40", "--arrivals", "constant", "--warmup", "0", "--output-tokens", "2", *LATE]
    rates = ["--start-rate", "20", "--least-rate", "20", "--slo", "e2e:max<60s", "--json"]
    try:
        assert run(["bench", "sweep", "--url", served.url, *load, *rates]) == 1
        (attempt,) = json.loads(capsys.readouterr().out)["attempts"]
        assert (attempt["gave_up"], attempt["share"], attempt["goodput"]) == (True, pytest.approx(37 / 40), None)
        assert len(served.server.seen) < 20
        assert run(["bench", "sweep", "--url", served.url, *load, *rates, "--no-give-up"]) == 1
        (attempt,) = json.loads(capsys.readouterr().out)["attempts"]
        assert (attempt["gave_up"], attempt["share"], attempt["requests"]) == (False, 0.5, 40)
    finally:
        served.close()

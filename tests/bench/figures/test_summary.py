"""The figures of a run, with exact numbers."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.bench.figures.records import answered, failed, run_of
from tests.support.scripted_run import answers, asked, on_server
from tidemill.bench.figures.cost import PriceModel
from tidemill.bench.figures.energy import EnergyMeter
from tidemill.bench.figures.fairness import jain
from tidemill.bench.figures.slo import parse_slo
from tidemill.bench.figures.summary import figures
from tidemill.bench.load.record import Arrived
from tidemill.bench.scripted.script import Script, ScriptedAnswer, Step
from tidemill.core.errors import ConfigError


def test_failures_are_shown_and_improve_no_figure() -> None:
    """Case 69: 90 ok in a second each, 10 refused in a millisecond."""
    ok = [answered(i, due=i * 0.1, first=0.9, gap=0.01) for i in range(90)]
    refused = [failed(90 + i, due=9 + i * 0.1) for i in range(10)]
    alone = figures(run_of(ok), slo=parse_slo("ttft:p99<2s"))
    both = figures(run_of([*ok, *refused]), slo=parse_slo("ttft:p99<2s"))
    for name in ("ttft_ms", "itl_ms", "gap_ms", "tpot_ms", "e2e_ms", "rates"):
        assert both[name] == alone[name], name
    assert (both["ttft_ms"]["p50"], both["ttft_ms"]["requests"], both["requests"]["total"]) == (900.0, 90, 100)
    assert both["requests"]["refused"] == both["requests"]["failed"] == 10
    assert both["requests"]["errors"] == [{"message": "429: full", "requests": 10}]
    assert (alone["slo"]["share"], both["slo"]["share"]) == (1.0, 0.9)
    assert both["slo"]["goodput_requests_per_second"] == alone["slo"]["goodput_requests_per_second"] == 9.0
    slower = figures(run_of([*ok, answered(90, due=9.0, first=3.0)]), slo=parse_slo("ttft:p99<2s"))["slo"]
    assert (slower["met"], slower["of"], slower["goodput_requests_per_second"]) == (90, 91, 9.0)
    assert slower["goodput_tokens_per_second"] == 90 * 11 / 10
    assert (alone["slo"]["terms"][0]["met"], both["slo"]["terms"][0]["met"]) == (True, False)


def test_tokens_of_failed_answers_are_no_throughput() -> None:
    broken = answered(1, tokens=51, outcome="disconnected", error="cut")
    values = figures(run_of([answered(0, tokens=11), broken]))
    assert values["rates"] == {
        "requests_per_second": 0.1,
        "output_tokens_per_second": 1.1,
        "prompt_tokens_per_second": 10.0,
    }
    assert (values["tokens"]["output"], values["tokens"]["output_of_failed"]) == (11, 51)


def test_throughput_and_latencies_of_a_run_are_exact() -> None:
    """Four requests a second apart; each 0.5 s to the first of 5 tokens, 0.1 s between."""
    script = answers(Step(after=0.5, tokens=1), Step(after=0.1, tokens=1, times=4), cached_tokens=2)
    values = figures(on_server(script, asked(4, every=1.0, prompt=8))[0], slo=parse_slo("e2e:max<=1s; itl:p95<150ms"))
    assert values["seconds"] == pytest.approx(3.9)
    assert values["rates"]["requests_per_second"] == pytest.approx(4 / 3.9, rel=1e-5)
    assert values["rates"]["output_tokens_per_second"] == pytest.approx(20 / 3.9, rel=1e-5)
    assert values["rates"]["prompt_tokens_per_second"] == pytest.approx(32 / 3.9, rel=1e-5)
    for percent in ("p50", "p90", "p95", "p99", "mean", "min", "max"):
        assert values["ttft_ms"][percent] == 500.0
        assert values["itl_ms"][percent] == values["gap_ms"][percent] == values["tpot_ms"][percent] == 100.0
        assert values["e2e_ms"][percent] == 900.0
    assert (values["itl_ms"]["samples"], values["itl_ms"]["requests"]) == (16, 4)
    assert values["tokens"]["cached_share"] == 0.25
    assert values["slo"]["share"] == 1.0
    assert values["queue_ms"] is None
    assert values["client"]["lateness_ms"]["max"] == pytest.approx(0.0, abs=1e-3)
    assert values["valid"] is True


def test_the_cache_share_is_of_prompts_whose_server_tells() -> None:
    records = [answered(0, cached_tokens=80), answered(1, cached_tokens=0), answered(2, cached_tokens=None)]
    tokens = figures(run_of(records))["tokens"]
    assert (tokens["cached"], tokens["cached_share"]) == (80, 0.4)
    assert figures(run_of([answered()]))["tokens"]["cached_share"] is None


def test_what_tokens_were_asked_for_and_what_the_server_counted() -> None:
    """Case 59: where lengths are not exact, the real ones are shown."""
    records = [answered(0, prompt_tokens=100), answered(1, prompt_tokens=106)]
    tokens = figures(run_of(records))["tokens"]
    assert (tokens["prompt"], tokens["prompt_planned"], tokens["prompts_of_planned_length"]) == (206, 200, 1)


def test_chunks_of_many_tokens_show_in_the_gaps() -> None:
    record = answered(tokens=1, output_tokens=21, counted="spread", chunks=3)
    record.arrived = [Arrived(1.0, 1), Arrived(2.0, 10), Arrived(3.0, 10)]
    values = figures(run_of([record]))
    assert (values["itl_ms"]["mean"], values["itl_ms"]["p99"], values["itl_ms"]["samples"]) == (100.0, 100.0, 20)
    assert (values["gap_ms"]["mean"], values["gap_ms"]["samples"]) == (1000.0, 2)
    assert values["tokens"]["counted"] == {"each": 0, "spread": 1, "chunks": 0}


def test_percentiles_of_few_requests_are_marked() -> None:
    assert figures(run_of([answered(i) for i in range(3)]))["ttft_ms"]["thin"] == ["p90", "p95", "p99"]
    assert figures(run_of([answered(i) for i in range(100)]))["ttft_ms"]["thin"] == []


def test_fairness_between_tenants() -> None:
    assert jain([5.0, 5.0, 5.0]) == pytest.approx(1.0)
    assert jain([1.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)
    assert jain([3.0, 1.0]) == pytest.approx(0.8)
    assert jain([]) is jain([0.0]) is None
    gold = [answered(i, tenant="gold", first=0.9, gap=0.01) for i in range(4)]  # 11 tokens in 1 s
    tin = [answered(i, tenant="tin", first=2.9, gap=0.01) for i in range(4)]  # in 3 s
    tenants = figures(run_of([*gold, *tin]), slo=parse_slo("ttft:p99<1s"))["tenants"]
    assert tenants["fairness"] == pytest.approx(0.8)
    assert [tenants["rows"][name]["slo_share"] for name in ("gold", "tin")] == [1.0, 0.0]
    assert tenants["rows"]["tin"]["ttft_p50_ms"] == 2900.0
    assert figures(run_of([answered()]))["tenants"] is None


def test_a_tenant_that_is_refused_everything_has_nothing() -> None:
    records = [answered(0, tenant="a", first=0.9, gap=0.01), failed(1, tenant="b")]
    assert figures(run_of(records))["tenants"]["fairness"] == pytest.approx(0.5)


def test_cost_by_price_and_power() -> None:
    price = PriceModel(per_hour=3.6, watts=100.0, per_kwh=0.36)
    values = figures(run_of([answered(tokens=100)], seconds=1000.0), price=price)["cost"]
    assert values["cost"] == pytest.approx(1.0 + 0.01)  # 1000 s at 3.6 an hour, 0.1 MJ at 0.36 a kWh
    assert values["cost_per_million_output_tokens"] == pytest.approx(10100.0)
    assert values["cost_per_million_tokens"] == pytest.approx(5050.0)
    assert (values["joules"], values["joules_measured"]) == (1e5, False)
    measured = figures(run_of([answered(tokens=100)], seconds=1000.0), price=price, joules=2e5)["cost"]
    assert (measured["cost"], measured["joules_per_output_token"]) == (pytest.approx(1.02), 2000.0)
    assert figures(run_of([answered()]))["cost"] is None


@pytest.mark.parametrize("field", ["per_hour", "watts", "per_kwh"])
def test_prices_that_cannot_be(field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        PriceModel(**{field: -1.0})


def test_energy_is_read_from_the_packages_and_survives_a_counter_that_wraps(tmp_path: Path) -> None:
    for name, value in (("intel-rapl:0", 900), ("intel-rapl:1", 100), ("intel-rapl:0:0", 5)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "energy_uj").write_text(f"{value}\n")
        (folder / "max_energy_range_uj").write_text("999\n")
    meter = EnergyMeter(tmp_path)
    assert meter.joules() == 0.0
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("100\n")  # 200 on, over the end
    (tmp_path / "intel-rapl:1" / "energy_uj").write_text("150\n")
    assert meter.joules() == pytest.approx(250e-6)
    (tmp_path / "intel-rapl:1" / "energy_uj").unlink()
    assert meter.joules() is None


def test_no_energy_where_the_machine_does_not_tell(tmp_path: Path) -> None:
    assert EnergyMeter(tmp_path).joules() is None


def test_figures_are_json_whatever_happened() -> None:
    script = Script(
        answers=(ScriptedAnswer(status=429), ScriptedAnswer(steps=(Step(disconnect=True),)), ScriptedAnswer(steps=()))
    )
    run, _ = on_server(script, asked(3))
    values = figures(run, slo=parse_slo("ttft:p99<1s; queue:max<1s"), price=PriceModel(per_hour=1))
    assert json.loads(json.dumps(values, allow_nan=False)) == values
    assert values["ttft_ms"] is None
    assert values["slo"]["share"] == 0.0


def test_the_order_of_records_changes_nothing() -> None:
    records = [answered(i, due=i, first=0.1 * (i % 7 + 1), tenant=str(i % 2)) for i in range(40)]
    shuffled = random.Random(1).sample(records, len(records))
    one, other = figures(run_of(records)), figures(run_of(shuffled))
    for values in (one, other):
        for name in ("ttft_ms", "itl_ms", "gap_ms", "tpot_ms", "e2e_ms"):
            values[name] = {key: value for key, value in values[name].items() if "interval" not in key}
        values["client"].pop("lateness_ms")
    assert one == other

"""How long a step takes by the model of steps, and that the model finds again what measurements were made of."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tiny import GEMMA, tiny_model
from tidemill.bench.simulation.calibration import fitted, shapes
from tidemill.bench.simulation.step_times import (
    StepModel,
    StepTimes,
    attention_flops,
    load_step_times,
    save_step_times,
    variant_name,
)
from tidemill.bench.work import Work
from tidemill.core.config import ExecutorConfig
from tidemill.core.errors import ConfigError
from tidemill.graph.kv_format import KvFormat
from tidemill.graph.passes.cost import RowShape, step_cost
from tidemill.graph.weight_source import formats_of

TIMES = StepTimes(
    body=((1, 2.0), (4, 3.0), (8, 5.0)),
    head=((1, 0.5), (2, 0.6)),
    attention_one=0.0,
    attention_many=0.0,
    host=0.1,
    host_row=0.01,
)
MODEL = tiny_model(**GEMMA)
FORMATS = formats_of(MODEL.weights, (spec.name for spec in MODEL.graph.weights))


def model(times: StepTimes = TIMES) -> StepModel:
    return StepModel(MODEL.graph, FORMATS, times)


@pytest.mark.parametrize(
    ("rows", "seconds"),
    [
        ([(0, 1, 1)], 2.0 + 0.5 + 0.1 + 0.01),
        ([(0, 1, 1), (9, 1, 1)], 2.0 + 1 / 3 + 0.6 + 0.1 + 0.02),
        ([(0, 6, 0)], 4.0 + 0.0 + 0.1 + 0.01),
        ([(0, 16, 1)], 9.0 + 0.5 + 0.1 + 0.01),
        ([(0, 1, 1)] * 4, 3.0 + 0.8 + 0.1 + 0.04),
    ],
)
def test_curves_are_read_between_and_beyond_their_points(rows: list[tuple[int, int, int]], seconds: float) -> None:
    assert model().seconds(rows) == pytest.approx(seconds)


def test_attention_counts_the_windows_of_layers_as_the_cost_pass_does() -> None:
    for row in (RowShape(start=0, tokens=1), RowShape(start=300, tokens=1), RowShape(start=30, tokens=50)):
        whole = step_cost(MODEL.graph, FORMATS, rows=[row], kv_format=KvFormat.F16).flops
        same = RowShape(start=0, tokens=row.tokens)
        without = step_cost(MODEL.graph, FORMATS, rows=[same], kv_format=KvFormat.F16).flops
        ours = attention_flops(MODEL.graph, FORMATS, row) - attention_flops(MODEL.graph, FORMATS, same)
        assert ours == whole - without


def test_a_long_context_takes_longer_by_its_operations_and_one_token_by_another_price() -> None:
    times = StepTimes(body=((1, 1.0),), head=((1, 0.0),), attention_one=1e-6, attention_many=1e-7)
    one, many = RowShape(start=500, tokens=1), RowShape(start=500, tokens=20)
    expected = 1e-6 * attention_flops(MODEL.graph, FORMATS, one) + 1e-7 * attention_flops(MODEL.graph, FORMATS, many)
    assert model(times).seconds([(500, 1, 1), (500, 20, 0)]) == pytest.approx(21.0 + expected)


def test_measurements_made_of_step_times_give_them_again() -> None:
    made = StepTimes(
        body=tuple((n, 1.0 + 0.03 * n) for n in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)),
        head=tuple((n, 0.2 + 0.001 * n) for n in (1, 2, 4, 8, 16, 32, 64)),
        attention_one=3e-7,
        attention_many=1e-7,
    )
    exact = StepModel(MODEL.graph, FORMATS, made)
    works = shapes(4096)
    seconds = {work: exact.seconds([(work.context, work.tokens, 1)] * work.streams) for work in works}
    found = fitted(MODEL.graph, FORMATS, seconds)
    assert found.attention_one == pytest.approx(made.attention_one)
    assert found.attention_many == pytest.approx(made.attention_many)
    # How one token's time is split between body and head is presumed from their bytes; their sum is not.
    again = StepModel(MODEL.graph, FORMATS, found)
    for work in works:
        assert again.seconds([(work.context, work.tokens, 1)] * work.streams) == pytest.approx(seconds[work])


def test_every_shape_that_the_fit_needs_is_measured_whatever_the_model_holds() -> None:
    for most in (128, 512, 8192):
        assert all(work.context + work.tokens < most for work in shapes(most))
        seconds = {work: 1.0 + 1e-3 * work.step_tokens + 1e-6 * work.streams * work.context for work in shapes(most)}
        fitted(MODEL.graph, FORMATS, seconds).check()


def test_noise_never_makes_more_work_take_less() -> None:
    seconds = {work: 1.0 + 1e-3 * work.step_tokens for work in shapes(1024)}
    seconds[Work(streams=1, context=0, tokens=64)] = 0.5
    fitted(MODEL.graph, FORMATS, seconds).check()


def test_step_times_come_back_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "steps.json"
    name = variant_name(ExecutorConfig())
    save_step_times(path, "tiny", "a machine", {name: TIMES})
    assert load_step_times(path, "tiny") == {name: TIMES}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "has no step times"),
        ('{"version": 9}', "is of version 9"),
        ('{"version": 1, "model": "other", "variants": {}}', "is of other"),
        ('{"version": 1, "model": "tiny", "variants": {"v": {"body": []}}}', "no step times"),
        (
            '{"version": 1, "model": "tiny", "variants": {"v": {"body": [[2, 1], [1, 2]], "head": [[1, 1]], '
            '"attention_one": 0, "attention_many": 0, "host": 0, "host_row": 0}}}',
            "body has to rise",
        ),
        (
            '{"version": 1, "model": "tiny", "variants": {"v": {"body": [[1, 2], [2, 1]], "head": [[1, 1]], '
            '"attention_one": 0, "attention_many": 0, "host": 0, "host_row": 0}}}',
            "body has to rise",
        ),
        (
            '{"version": 1, "model": "tiny", "variants": {"v": {"body": [[1, 1]], "head": [[1, 1]], '
            '"attention_one": -1, "attention_many": 0, "host": 0, "host_row": 0}}}',
            "less than no time",
        ),
    ],
)
def test_what_is_no_file_of_step_times_is_said_in_one_line(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "steps.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=said) as error:
        load_step_times(path, "tiny")
    assert str(path) in error.value.message
    with pytest.raises(ConfigError, match="No such file"):
        load_step_times(tmp_path / "none", "tiny")


def test_executors_whose_steps_differ_have_names_that_differ() -> None:
    changed = [{}, {"numerics": "exact"}, {"attention": "materialized"}, {"kv_format": "f32"}, {"threads": 1}]
    assert len({variant_name(ExecutorConfig(**one)) for one in changed}) == len(changed)  # type: ignore[arg-type]
    assert variant_name(ExecutorConfig(packed_cache="off")) == variant_name(ExecutorConfig())

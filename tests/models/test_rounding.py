"""``quantize``: what becomes of each weight, how well scales are found, and how far answers move."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.golden_models import all_logits, executor_for
from tests.support.tiny import VARIANTS, TinyModel, tiny_model
from tidemill.core.config import EngineConfig, ModelConfig
from tidemill.core.errors import ConfigError, ModelLoadError
from tidemill.executors.native._native import round_rows
from tidemill.graph.formats import WeightFormat, WeightTensor, dequantize
from tidemill.graph.weight_source import formats_of
from tidemill.llm import LLM
from tidemill.models.calibration import figures
from tidemill.models.loading import load_model
from tidemill.models.loading.rounding import RoundedWeights, Scheme
from tidemill.models.loading.stored import StoredTensor, StoredWeights
from tidemill.models.memory_plan import plan_memory
from tidemill.models.rounding_check import exact_answers
from tidemill.models.shape import read_shape

DATA = Path(__file__).parents[1] / "golden" / "data"
Floats = npt.NDArray[np.float32]
NUMBERS = {WeightFormat.F32: 0, WeightFormat.F16: 1, WeightFormat.BF16: 2, WeightFormat.Q4_1: 4, WeightFormat.Q8_0: 5}


def rounded(values: Floats, to: WeightFormat) -> Floats:
    out = np.empty(len(values) * to.row_bytes(values.shape[1]), np.uint8)
    assert round_rows(values.view(np.uint8).reshape(-1), 0, values.shape[1], NUMBERS[to], out)
    return dequantize(WeightTensor(name="w", format=to, shape=values.shape, data=out))


def error(values: Floats, other: Floats) -> float:
    return float(np.sqrt(np.mean((values - other) ** 2)) / values.std())


def plain_rounding(values: Floats) -> Floats:
    """Between the extremes of a group, with scale and minimum in f16."""
    groups = values.reshape(-1, 32)
    low = groups.min(axis=1, keepdims=True).astype(np.float16).astype(np.float32)
    step = ((groups.max(axis=1, keepdims=True) - low) / 15).astype(np.float16).astype(np.float32)
    return (np.clip(np.rint((groups - low) / step), 0, 15) * step + low).reshape(values.shape)


def test_the_search_finds_better_scales_than_the_extremes() -> None:
    values = np.random.default_rng(1).standard_normal((64, 1024)).astype(np.float32) * np.float32(0.02)
    assert error(values, rounded(values, WeightFormat.Q4_1)) < 0.93 * error(values, plain_rounding(values))
    assert error(values, rounded(values, WeightFormat.Q8_0)) < 0.006


def test_weights_that_fit_a_grid_stay_what_they_are() -> None:
    """Those of a checkpoint that was made of a 4-bit file, each group of which uses both ends of its grid."""
    random = np.random.default_rng(2)
    low, step = (np.float16(0.1) * random.standard_normal((2, 512, 1))).astype(np.float16).astype(np.float32)
    codes = random.integers(0, 16, (512, 32))
    codes[:, 5], codes[:, 30] = 0, 15
    values = (codes * np.abs(step) + low).astype(np.float32)
    np.testing.assert_allclose(rounded(values, WeightFormat.Q4_1), values, rtol=0, atol=1e-7)
    constant = np.full((2, 32), np.float32(-0.5))
    np.testing.assert_array_equal(rounded(constant, WeightFormat.Q4_1), constant)
    np.testing.assert_array_equal(rounded(np.zeros((2, 32), np.float32), WeightFormat.Q8_0), 0)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e9])
@pytest.mark.parametrize("scheme", ["w4", "w8"])
def test_a_value_that_no_block_holds_is_refused(value: float, scheme: Scheme) -> None:
    model = tiny_model(WeightFormat.F32)
    weights = stored(model)
    name = "model.layers.0.self_attn.q_proj.weight"
    data = weights.stored[name].data.copy()
    data.view("<f4")[5] = value
    broken = StoredWeights({**weights.stored, name: replace(weights.stored[name], data=data)})
    with pytest.raises(ModelLoadError, match=f"file: tensor {name} has a value that is not finite, or too large"):
        RoundedWeights(model.graph, broken, scheme, "file")[name]


def stored(model: TinyModel) -> StoredWeights:
    return StoredWeights(
        {
            name: StoredTensor(
                name=name, where="file", type_name="", format=tensor.format, shape=tensor.shape, data=tensor.data
            )
            for name, tensor in model.weights.items()
        }
    )


def formats(scheme: Scheme, format_: WeightFormat = WeightFormat.BF16, **config: object) -> dict[str, WeightFormat]:
    model = tiny_model(format_, **config)
    weights = RoundedWeights(model.graph, stored(model), scheme, "file")
    return formats_of(weights, weights)


def test_what_each_weight_becomes() -> None:
    for tied in (True, False):
        found = formats("w4", tie_word_embeddings=tied)
        assert found.pop("model.embed_tokens.weight") is WeightFormat.Q8_0
        assert tied or found.pop("lm_head.weight") is WeightFormat.Q8_0
        assert {f for name, f in found.items() if "proj" in name} == {WeightFormat.Q4_1}
        assert {f for name, f in found.items() if "norm" in name} == {WeightFormat.F32}
        assert {f for name, f in formats("w8", tie_word_embeddings=tied).items() if "norm" not in name} == {
            WeightFormat.Q8_0
        }


def test_routers_and_rows_of_no_whole_blocks_stay() -> None:
    found = formats("w4", **VARIANTS["mixtral"])
    assert {f for name, f in found.items() if name.endswith("mlp.gate.weight")} == {WeightFormat.BF16}
    assert {f for name, f in found.items() if ".experts." in name} == {WeightFormat.Q4_1}
    odd = formats("w4", intermediate_size=48)
    assert odd["model.layers.0.mlp.down_proj.weight"] is WeightFormat.BF16
    assert odd["model.layers.0.mlp.up_proj.weight"] is WeightFormat.Q4_1


@pytest.mark.parametrize("case", ["quantized/awq", "quantized/fp8_block", "quantized/gptq8"])
def test_what_is_quantised_already_is_refused(case: str) -> None:
    with pytest.raises(
        ConfigError, match=r"quantize is w8, and .* is quantised already: .*; leave quantize out"
    ) as error:
        load_model(ModelConfig(path=str(DATA / case), quantize="w8"))
    assert error.value.param == "quantize"


# -- answers ---------------------------------------------------------------------------------------------------------

PROMPT = tuple(np.random.default_rng(3).integers(0, 60, 200).tolist())


@cache
def model_and_logits(number: int) -> tuple[TinyModel, Floats]:
    model = tiny_model(WeightFormat.F32, seed=number, hidden_size=128, intermediate_size=256, head_dim=32)
    return model, logits(model, model.weights)


def logits(model: TinyModel, weights: object) -> Floats:
    executor = executor_for("native", model.graph, weights)  # type: ignore[arg-type]
    try:
        return all_logits(executor, model.graph, PROMPT)
    finally:
        executor.close()


def mean_kl(scheme: Scheme, change: object = None) -> float:
    """Over three models; exact numerics, so that only weights are rounded."""
    total = 0.0
    for number in range(3):
        model, exact = model_and_logits(number)
        weights: dict[str, WeightTensor] = dict(RoundedWeights(model.graph, stored(model), scheme, "file"))
        if callable(change):
            weights |= change(model)
        total += figures(exact, logits(model, weights), PROMPT).mean_kl / 3
    return total


def with_plain_rounding(model: TinyModel) -> dict[str, WeightTensor]:
    return {
        name: replace(
            tensor, data=plain_rounding(dequantize(tensor)).view(np.uint8).reshape(-1), format=WeightFormat.F32
        )
        for name, tensor in model.weights.items()
        if "proj" in name
    }


def with_four_bit_head(model: TinyModel) -> dict[str, WeightTensor]:
    tensor = model.weights["model.embed_tokens.weight"]
    values = rounded(dequantize(tensor), WeightFormat.Q4_1)
    return {tensor.name: replace(tensor, data=values.view(np.uint8).reshape(-1), format=WeightFormat.F32)}


def test_how_far_answers_move() -> None:
    """Random models of 128 columns suffer far more than trained ones; the bounds tell right from nearly right."""
    assert mean_kl("w8") < 0.03
    assert mean_kl("w4") < 1.1
    assert mean_kl("w4", with_plain_rounding) > 1.15
    assert mean_kl("w4", with_four_bit_head) > 1.3


def test_the_figures_are_what_they_say() -> None:
    exact = np.log(np.array([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25]], np.float32))
    other = np.log(np.array([[0.25, 0.5, 0.25], [0.25, 0.5, 0.25]], np.float32)) + np.float32(3)
    found = figures(exact, other, [0, 1])
    assert found.positions == 2
    assert found.mean_kl == pytest.approx((0.5 * math.log(2) - 0.25 * math.log(2)) / 2, abs=1e-6)
    assert found.agreement == 0.5
    assert found.exact_perplexity == pytest.approx(4)
    assert found.perplexity == pytest.approx(2)


# -- from a folder to answers ----------------------------------------------------------------------------------------

FOLDER = str(DATA / "qwen3")


def test_the_comparison_is_printed_once_and_can_be_turned_off(capfd: pytest.CaptureFixture[str]) -> None:
    with LLM(FOLDER, quantize="w4", kv_memory=2**20) as llm:
        assert llm.generate("abc")[0].choices[0].token_ids
    line = capfd.readouterr().err.strip()
    assert line.startswith("quantize w4: mean KL ")
    assert "same most likely token" in line
    assert "positions of a built-in English text" in line
    assert "\n" not in line
    with LLM(FOLDER, quantize="w4", quantize_check=0):
        pass
    assert capfd.readouterr().err == ""


def test_w8_is_closer_than_w4(capfd: pytest.CaptureFixture[str]) -> None:
    kl = {}
    for scheme in ("w4", "w8"):
        with LLM(FOLDER, quantize=scheme, numerics="exact", max_model_len=64):
            kl[scheme] = float(capfd.readouterr().err.split("mean KL ")[1].split()[0])
    assert 0 < kl["w8"] < kl["w4"]


def test_local_layers_are_compared_too(capfd: pytest.CaptureFixture[str]) -> None:
    with LLM(str(DATA / "mistral_window"), quantize="w8"):
        assert "quantize w8: mean KL 0." in capfd.readouterr().err


def test_a_checkpoint_that_does_not_fit_is_not_compared_and_that_is_said() -> None:
    config = EngineConfig(model=ModelConfig(path=FOLDER, quantize="w8"))
    answers = exact_answers(load_model(config.model), config, 2**20)
    assert answers is not None
    assert answers.logits is None
    assert answers.report(None, ()).startswith("quantize w8: not compared with the checkpoint: ")  # type: ignore[arg-type]
    assert "needs" in answers.reason


def test_a_plan_shows_what_rounded_weights_take() -> None:
    sizes = {}
    for scheme in (None, "w8", "w4"):
        config = ModelConfig(path=FOLDER, quantize=scheme)  # type: ignore[arg-type]
        made = plan_memory(read_shape(config), EngineConfig(model=config), 2**34)
        sizes[scheme] = made.weights
        assert ("in the file" in made.explain()[1]) == (scheme is None)
        assert scheme is None or f"quantised to {scheme}" in made.explain()[1]
    assert sizes["w4"] < sizes["w8"] < sizes[None]


def test_origins_tell_schemes_apart_and_embeddings_are_made_once() -> None:
    weights = {scheme: load_model(ModelConfig(path=FOLDER, quantize=scheme)).weights for scheme in ("w4", "w8")}  # type: ignore[arg-type]
    name = "model.layers.0.self_attn.q_proj.weight"
    one, other = (each.origin_of(name) for each in weights.values())  # type: ignore[attr-defined]
    assert one.recipe != other.recipe
    table = weights["w4"]["model.embed_tokens.weight"]
    assert weights["w4"]["model.embed_tokens.weight"] is table

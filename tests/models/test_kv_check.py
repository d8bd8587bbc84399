"""The comparison at the start: what it says, what it warns of, and what it refuses."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tidemill.core.config import ExecutorConfig
from tidemill.core.errors import ConfigError
from tidemill.graph.kv_format import KvFormat
from tidemill.llm import LLM, SamplingParams
from tidemill.models.calibration import Figures
from tidemill.models.kv_check import KvComparison

DATA = Path(__file__).parents[1] / "golden" / "data"
FOLDER = str(DATA / "kv_formats")
FIGURES = Figures(positions=9, mean_kl=0.1, agreement=0.5, perplexity=3, exact_perplexity=2)
SETTINGS = ExecutorConfig(kv_format="q4_0", kv_check_warn=0.1, kv_check_limit=0.2)


def wild(folder: Path, factor: float) -> str:
    """The checkpoint with one channel of each head's keys so many times as large, and of its queries as many times as
    small: in f16 the same answers to rounding. Rope turns dimension 19 with 39, by little: they are of two groups."""
    shutil.copytree(FOLDER, folder)
    weights = load_file(folder / "model.safetensors")
    for name, values in weights.items():
        for part, scale in (("k_proj", factor), ("q_proj", 1 / factor)):
            if part in name:
                weights[name] = values.copy()
                weights[name].reshape(-1, 40, values.shape[1])[:, [19, 39]] *= np.float32(scale)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)


def distance(line: str) -> float:
    return float(line.split("mean KL ")[1].split(maxsplit=1)[0])


def test_a_model_with_one_wild_channel_is_caught(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = {"kv_format": "q8_0", "threads": 1, "kv_memory": 2**20}
    with LLM(FOLDER, **options):
        tame = distance(capfd.readouterr().err)
    path = wild(tmp_path / "wild", 2000)
    with pytest.raises(
        ConfigError, match=r"kv_format is q8_0, which this model does not stand: mean KL .* use f16"
    ) as told:
        LLM(path, **options)
    assert told.value.param == "kv_format"
    assert distance(told.value.message) > 0.5 > 20 * tame
    # The channel is no trouble for floats: answers are those of the model without it.
    texts = []
    for folder in (FOLDER, path):
        with LLM(folder, threads=1, kv_memory=2**20) as llm:
            texts.append(
                llm.generate([[5, 6, 7, 8, 9]], SamplingParams(temperature=0, max_tokens=8))[0].choices[0].token_ids
            )
    assert texts[0] == texts[1]


def test_the_check_can_be_widened_or_left_out(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = wild(tmp_path / "wild", 2000)
    with LLM(path, kv_format="q8_0", kv_check_limit=100, kv_memory=2**20):
        line = capfd.readouterr().err
    assert line.startswith("warning: kv_format q8_0: mean KL ")
    assert line.rstrip().endswith("that is more than kv_check_warn (0.02): use f16")
    with LLM(path, kv_format="q8_0", kv_check=0, kv_memory=2**20) as llm:
        assert llm.generate("abc", SamplingParams(temperature=0, min_tokens=4, max_tokens=4))[0].choices[0].token_ids
    assert capfd.readouterr().err == ""


def test_formats_of_floats_are_not_compared(capfd: pytest.CaptureFixture[str]) -> None:
    for kv_format in ("auto", "f16", "f32"):
        with LLM(FOLDER, kv_format=kv_format, kv_memory=2**20):
            assert capfd.readouterr().err == ""


def test_few_tokens_and_a_pool_for_few_are_enough(capfd: pytest.CaptureFixture[str]) -> None:
    with LLM(FOLDER, kv_format="q8_0", kv_check=7, kv_memory=2**20):
        assert "on 7 positions of a built-in English text" in capfd.readouterr().err
    with LLM(FOLDER, kv_format="q8_0", kv_memory=17408, max_model_len=32) as llm:
        assert "on 32 positions" in capfd.readouterr().err
        assert llm.generate("abc", SamplingParams(temperature=0, min_tokens=4, max_tokens=4))[0].choices[0].token_ids


def test_embeddings_are_not_compared_and_that_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    with LLM(str(DATA / "bert"), kv_format="q8_0"):
        assert capfd.readouterr().err == (
            "kv_format q8_0: not compared with f16: a model of embeddings draws no tokens\n"
        )


def test_the_bounds_themselves_are_within() -> None:
    comparison = KvComparison(kv_format=KvFormat.Q4_0, figures=FIGURES)
    assert comparison.verdict(SETTINGS) == (
        "kv_format q4_0: mean KL 0.10000 nats to f16 on 9 positions of a built-in English text, "
        "same most likely token 50.0%, perplexity 3.000 (f16 2.000)"
    )
    line = comparison.verdict(replace(SETTINGS, kv_check_warn=0.09))
    assert line.endswith("; that is more than kv_check_warn (0.09): use q8_0 or f16")
    with pytest.raises(ConfigError, match=r"kv_check_limit \(0.05\); use q8_0 or f16, or raise kv_check_limit"):
        comparison.verdict(replace(SETTINGS, kv_check_limit=0.05))


def test_what_is_no_number_is_refused() -> None:
    broken = replace(FIGURES, mean_kl=float("nan"))
    with pytest.raises(ConfigError, match="mean KL nan"):
        KvComparison(kv_format=KvFormat.Q4_0, figures=broken).verdict(SETTINGS)

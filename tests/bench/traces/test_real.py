"""Synthetic against real: models of public traces, where the variable TIDEMILL_TRACES names a folder that has them.

Bounds are stated with each trace. Fano factors are compared at windows that have ten or more of them in the trace.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tidemill.bench.traces.compare import Comparison
from tidemill.bench.traces.fit import fit_model
from tidemill.bench.traces.formats import load_trace
from tidemill.bench.traces.model import load_model
from tidemill.bench.traces.synth import synthesised

FOLDER = Path(os.environ.get("TIDEMILL_TRACES", "/nonexistent"))
TRACES: dict[str, dict[str, Any]] = {
    # The code trace paces requests at 0.1 s of the clock, which a law in stretched time smears.
    "azure/AzureLLMInferenceTrace_code.csv": {
        "fit": "azure-code-2023",
        "requests": 8819,
        "count": 0.12,
        "gaps": 0.12,
        "fano": 1.5,
    },
    "azure/AzureLLMInferenceTrace_conv.csv": {"fit": "azure-conv-2023", "requests": 19366, "gaps": 0.02, "fano": 1.35},
    # Its clock ticks every 3 s and drifts, so windows of 1 s say nothing.
    "mooncake/conversation_trace.jsonl": {"fit": "mooncake-conversation", "requests": 12031, "gaps": 0.03, "fano": 1.6},
    "mooncake/synthetic_trace.jsonl": {"requests": 3993, "gaps": 0.03, "fano": 1.9},
}
LENGTHS, CORRELATION, CEILING, COUNT = 0.03, 0.05, 0.05, 0.08


@pytest.mark.parametrize("file", TRACES)
@pytest.mark.parametrize("seed", [1, 2])
def test_what_a_model_makes_is_like_the_real_trace(file: str, seed: int) -> None:
    if not (FOLDER / file).is_file():
        pytest.skip("TIDEMILL_TRACES names no folder with this trace")
    bounds = TRACES[file]
    real = load_trace(FOLDER / file)
    assert (len(real.rows), real.notes) == (bounds["requests"], ())
    model = load_model(bounds["fit"]) if "fit" in bounds else fit_model(real)
    block = 512 if real.format == "mooncake" else 16
    found = Comparison.of(real, synthesised(model, seed=seed), block=block).values
    was, made = found["real"], found["synthetic"]
    assert made["requests"] == pytest.approx(was["requests"], rel=bounds.get("count", COUNT))
    assert found["ks"]["gaps"] < bounds["gaps"]
    assert found["ks"]["prompt_tokens"] < LENGTHS
    assert found["ks"]["output_tokens"] < LENGTHS
    assert made["length_correlation"] == pytest.approx(was["length_correlation"], abs=CORRELATION)
    for window in ("10s", "60s"):
        assert 1 / bounds["fano"] < made["fano"][window] / was["fano"][window] < bounds["fano"]
    assert made["prefix"]["ceiling"] == pytest.approx(was["prefix"]["ceiling"], abs=CEILING)


@pytest.mark.parametrize("file", [file for file, bounds in TRACES.items() if "fit" in bounds])
def test_the_packaged_model_is_the_fit_of_the_trace(file: str) -> None:
    if not (FOLDER / file).is_file():
        pytest.skip("TIDEMILL_TRACES names no folder with this trace")
    packaged = load_model(TRACES[file]["fit"])
    assert fit_model(load_trace(FOLDER / file), source=packaged.source) == packaged

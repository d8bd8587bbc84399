"""What stored weights cost before they are used: nothing, and making each once is enough for a start."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tidemill.core.config import ExecutorConfig, ModelConfig
from tidemill.executors.native.executor import NativeExecutor
from tidemill.graph.formats import WeightTensor
from tidemill.graph.passes.fuse import fuse
from tidemill.graph.weight_source import formats_of
from tidemill.models.loading import load_model
from tidemill.models.loading.stored import StoredTensor

GOLDEN = Path(__file__).parents[2] / "golden" / "data"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each weight was made."""
    counts: Counter[str] = Counter()
    make = StoredTensor.weight

    def counted(self: StoredTensor, name: str) -> WeightTensor:
        counts[name] += 1
        return make(self, name)

    monkeypatch.setattr(StoredTensor, "weight", counted)
    return counts


def test_asking_about_weights_makes_none(made: Counter[str]) -> None:
    weights = load_model(ModelConfig(path=str(GOLDEN / "gpt_oss_mxfp4"))).weights
    assert formats_of(weights, weights).keys() == set(weights)
    assert "model.norm.weight" in weights
    assert "model.abnormal.weight" not in weights
    assert not made


def test_a_start_makes_each_weight_once(made: Counter[str]) -> None:
    model = load_model(ModelConfig(path=str(GOLDEN / "gpt_oss_mxfp4")))
    NativeExecutor(fuse(model.graph), model.weights, ExecutorConfig(threads=1, packed_cache="off")).close()
    assert made == dict.fromkeys(model.weights, 1)

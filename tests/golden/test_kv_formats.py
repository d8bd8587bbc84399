"""Keys and values in q8_0 and q4_0 against the gguf package's blocks, and against transformers with a cache that rounds
by them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.golden_models import BLOCK_SIZE, DATA, load, row
from tidemill.core.config import ExecutorConfig
from tidemill.core.step import StepPlan
from tidemill.executors.factory import make_executor
from tidemill.executors.protocol import KvPoolSpec
from tidemill.executors.reference.kv_rows import decode_heads, encode_heads
from tidemill.graph.kv_format import KvFormat
from tidemill.graph.passes.fuse import fuse

EXPECTED = np.load(DATA / "kv_formats" / "expected.npz")
FORMATS = [KvFormat.F32, KvFormat.Q8_0, KvFormat.Q4_0]


@pytest.mark.parametrize("kv_format", [KvFormat.Q8_0, KvFormat.Q4_0])
def test_blocks_are_those_of_gguf(kv_format: KvFormat) -> None:
    groups = EXPECTED["groups"]
    assert np.array_equal(encode_heads(groups, kv_format), EXPECTED[f"{kv_format}_blocks"])
    # A head that ends within a group is filled up with zeros.
    heads = np.concatenate([groups[:-1], groups[1:, :8]], axis=1)
    filled = np.concatenate([groups[1:, :8], np.zeros((len(heads), 24), np.float32)], axis=1)
    expected = np.concatenate([encode_heads(groups[:-1], kv_format), encode_heads(filled, kv_format)], axis=1)
    assert np.array_equal(encode_heads(heads, kv_format), expected)
    assert decode_heads(expected, kv_format, 40).shape == heads.shape


@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize("executor", ["reference", "native"])
def test_logits_are_those_of_transformers_with_a_rounding_cache(executor: str, kv_format: KvFormat) -> None:
    """Where two computations of a number lie on the two sides of a code's edge, their codes are one apart; so a few
    logits may be further off than all others, and none so far as those of the next format."""
    loaded = load("kv_formats")
    config = ExecutorConfig(executor=executor, numerics="exact", threads=1, kv_format=kv_format)  # type: ignore[arg-type]
    made = make_executor(fuse(loaded.graph), loaded.weights, config)
    made.allocate_kv(
        [KvPoolSpec(group=group.name, num_blocks=12, block_size=BLOCK_SIZE) for group in loaded.graph.kv_groups]
    )
    for index in range(3):
        tokens = EXPECTED[f"prompt{index}"].tolist()
        plan = StepPlan(step=0, rows=(row(loaded.graph, tokens, outputs=len(tokens), num_blocks=12),))
        found = made.logits(plan)[0]
        errors = {other: np.abs(found - EXPECTED[f"{other}_logits{index}"]) for other in FORMATS}
        own = errors.pop(kv_format)
        assert np.median(own) < 2e-5
        assert all(own.mean() < 0.2 * other.mean() for other in errors.values())
    made.close()

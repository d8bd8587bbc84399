"""Paged attention against numpy float64, and bits that depend on nothing but the token's own context."""

from __future__ import annotations

import numpy as np
import pytest

from tests.executors.native.attention_rig import AttentionRig, run_in_chunks
from tests.executors.native.small_graphs import plan_row, step
from tests.support.isas import EVERY_ISA
from tidemill.core.config import ExecutorConfig
from tidemill.graph.kv_format import KvFormat

SHAPES = [(3, 1, 64), (4, 2, 80), (2, 2, 96), (6, 1, 128), (2, 1, 256), (9, 3, 16), (7, 1, 12), (8, 8, 8)]


@pytest.mark.parametrize("attention", ["tiled", "materialized"])
@pytest.mark.parametrize("isa", EVERY_ISA)
@pytest.mark.parametrize("shape", SHAPES)
def test_attention_equals_numpy(shape: tuple[int, int, int], isa: str, attention: str) -> None:
    """1, 7, 33 and 150 tokens to 1e-5 of attention over the rounded keys and values; in f32 with rope."""
    for kv_format in KvFormat:
        rig = AttentionRig(*shape, rope=kv_format is KvFormat.F32)
        config = ExecutorConfig(threads=2, isa=isa, kv_format=kv_format, attention=attention)  # type: ignore[arg-type]
        executor = rig.executor(config=config)
        for count in (1, 7, 33, 150):
            tokens = rig.tokens(count)
            found = run_in_chunks(executor, tokens, list(range(10)), [])
            np.testing.assert_allclose(found, rig.expected(tokens, kv_format), rtol=0, atol=1e-5)
        executor.close()


@pytest.mark.parametrize("attention", ["tiled", "materialized"])
@pytest.mark.parametrize("kv_format", [KvFormat.F16, KvFormat.Q8_0, KvFormat.Q4_0])
@pytest.mark.parametrize("shape", [(3, 1, 64), (4, 4, 32), (7, 1, 12)])
def test_bits_depend_on_the_context_alone(shape: tuple[int, int, int], kv_format: KvFormat, attention: str) -> None:
    """Chunks, block sizes, block ids, threads, neighbours and the merged form: all equal with ==."""
    rig = AttentionRig(*shape, rope=True)
    tokens = rig.tokens(200)
    shuffled = [13, 2, 9, 0, 5, 11, 1, 8, 3, 7, 12, 4, 6, 10]

    def config(threads: int = 1) -> ExecutorConfig:
        return ExecutorConfig(threads=threads, kv_format=kv_format, attention=attention)  # type: ignore[arg-type]

    executor = rig.executor(config=config())
    reference = run_in_chunks(executor, tokens, list(range(13)), [])
    for chunks in ([1] * 200, [63, 1, 1, 64], [7] * 20, [16, 48, 65], [199]):
        assert np.array_equal(reference, run_in_chunks(executor, tokens, shuffled, chunks))
    neighbours = [
        plan_row(rig.tokens(n, seed=n), blocks=range(20 + 4 * i, 24 + 4 * i)) for i, n in enumerate([1, 50, 9])
    ]
    beside = executor.logits(step(neighbours[0], plan_row(tokens, blocks=shuffled), *neighbours[1:]))
    assert np.array_equal(reference, beside[1])
    executor.close()
    for block_size, threads, merged in ((32, 1, False), (64, 2, False), (16, 2, True)):
        other = rig.executor(block_size=block_size, merged=merged, config=config(threads))
        assert np.array_equal(reference, run_in_chunks(other, tokens, shuffled, [100]))
        other.close()


@pytest.mark.parametrize("attention", ["tiled", "materialized"])
@pytest.mark.parametrize("kv_format", list(KvFormat))
def test_what_unwritten_slots_hold_never_matters(kv_format: KvFormat, attention: str) -> None:
    """A pool full of NaN gives the bits of a pool full of zeros."""
    rig = AttentionRig(6, 2, 32)
    config = ExecutorConfig(threads=1, kv_format=kv_format, attention=attention)  # type: ignore[arg-type]
    clean, dirty = rig.executor(config=config, num_blocks=8), rig.executor(config=config, num_blocks=8)
    size = len(dirty.read_blocks("full", [0]))
    dirty.write_blocks("full", range(8), b"\xff" * (8 * size))  # NaN in floats, and in scales of codes
    tokens = rig.tokens(71)
    for chunks in ([], [1, 5, 30, 30]):
        found = run_in_chunks(dirty, tokens, [3, 1, 7, 0, 5], chunks)
        assert np.isfinite(found).all()
        assert np.array_equal(found, run_in_chunks(clean, tokens, [3, 1, 7, 0, 5], chunks))
    clean.close()
    dirty.close()


def test_a_later_tokens_nan_does_not_reach_earlier_ones() -> None:
    """Queries of one panel read different numbers of tokens: the first must not see the second's value."""
    rig = AttentionRig(1, 1, 8)
    rig.v[5] = np.nan
    executor = rig.executor()
    tokens = [1, 2, 3, 4, 5, 6]
    found = executor.logits(step(plan_row(tokens, blocks=[0])))[0]
    assert np.isfinite(found[:4]).all()
    assert np.isnan(found[4:]).all()
    executor.close()


def test_large_scores_do_not_overflow() -> None:
    """Scores of tens of thousands: the largest key takes everything."""
    rig = AttentionRig(2, 1, 16)
    rig.q *= 1000
    executor = rig.executor(config=ExecutorConfig(threads=1, kv_format="f32"))
    tokens = rig.tokens(80)
    found = run_in_chunks(executor, tokens, range(5), [])
    np.testing.assert_allclose(found, rig.expected(tokens, KvFormat.F32), rtol=0, atol=1e-4)
    executor.close()

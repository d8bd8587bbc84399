"""Attention over a window, with and without a soft cap: numpy's values, the same bits everywhere, and no look at
blocks that were given back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from tests.executors.native.attention_rig import AttentionRig, run_in_chunks
from tests.executors.native.small_graphs import SmallGraph, executor_for, plan_row, step
from tests.support.isas import EVERY_ISA
from tidemill.core.config import ExecutorConfig
from tidemill.core.errors import ModelLoadError
from tidemill.core.step import NO_BLOCK, BlockId, PlanRow, SequenceId
from tidemill.executors.native.executor import NativeExecutor
from tidemill.executors.protocol import KvPoolSpec
from tidemill.graph.graph import Add, Attention, KvGroup
from tidemill.graph.kv_format import KvFormat

BOTH_FORMS = pytest.mark.parametrize("attention", ["tiled", "materialized"])


def settings(attention: str = "tiled", *, threads: int = 1, kv_format: str = "f32") -> ExecutorConfig:
    return ExecutorConfig(threads=threads, attention=attention, kv_format=kv_format)  # type: ignore[arg-type]


@BOTH_FORMS
@pytest.mark.parametrize("isa", EVERY_ISA)
@pytest.mark.parametrize("shape", [(3, 1, 64), (2, 2, 80), (7, 1, 12), (1, 1, 8)])
def test_windows_and_caps_equal_numpy(shape: tuple[int, int, int], isa: str, attention: str) -> None:
    """150 tokens; windows that end within a panel of queries, a block, a tile, on its edge, and before all tokens."""
    for window in (1, 2, 5, 16, 63, 64, 65, 100, 150, 1000):
        for cap in (None, 3.0):
            rig = AttentionRig(*shape, rope=True, window=window, soft_cap=cap)
            config = ExecutorConfig(threads=2, isa=isa, kv_format="f32", attention=attention)  # type: ignore[arg-type]
            executor = rig.executor(config=config)
            tokens = rig.tokens(150)
            found = run_in_chunks(executor, tokens, range(10), [])
            np.testing.assert_allclose(found, rig.expected(tokens, KvFormat.F32), rtol=0, atol=1e-5)
            executor.close()


@BOTH_FORMS
@pytest.mark.parametrize("isa", EVERY_ISA)
@pytest.mark.parametrize("shape", [(3, 1, 64), (6, 2, 80), (7, 1, 12), (4, 4, 8)])
def test_sinks_equal_numpy(shape: tuple[int, int, int], isa: str, attention: str) -> None:
    """Each head's own; the token at position 0 too shares its weight with the sink."""
    for window in (None, 1, 16, 65, 100):
        rig = AttentionRig(*shape, rope=True, window=window, sinks=True)
        config = ExecutorConfig(threads=2, isa=isa, kv_format="f32", attention=attention)  # type: ignore[arg-type]
        executor = rig.executor(config=config)
        tokens = rig.tokens(150)
        found = run_in_chunks(executor, tokens, range(10), [])
        np.testing.assert_allclose(found, rig.expected(tokens, KvFormat.F32), rtol=0, atol=1e-5)
        executor.close()


@BOTH_FORMS
@pytest.mark.parametrize(
    ("window", "cap", "sinks"),
    [(5, None, False), (64, 4.0, False), (70, None, False), (None, 2.0, False), (None, None, True), (70, None, True)],
)
def test_bits_depend_on_the_context_alone(window: int | None, cap: float | None, sinks: bool, attention: str) -> None:
    """Chunks, block sizes, block ids, threads, neighbours and the merged form: all equal with ==."""
    rig = AttentionRig(4, 2, 20, rope=True, window=window, soft_cap=cap, sinks=sinks)
    tokens = rig.tokens(200)
    shuffled = [13, 2, 9, 0, 5, 11, 1, 8, 3, 7, 12, 4, 6, 10]
    executor = rig.executor(config=settings(attention))
    reference = run_in_chunks(executor, tokens, range(13), [])
    for chunks in ([1] * 200, [63, 1, 1, 64], [7] * 20, [16, 48, 65], [199]):
        assert np.array_equal(reference, run_in_chunks(executor, tokens, shuffled, chunks))
    neighbours = [
        plan_row(rig.tokens(n, seed=n), blocks=range(20 + 4 * i, 24 + 4 * i)) for i, n in enumerate([1, 50, 9])
    ]
    beside = executor.logits(step(neighbours[0], plan_row(tokens, blocks=shuffled), *neighbours[1:]))
    assert np.array_equal(reference, beside[1])
    executor.close()
    for block_size, threads, merged in ((32, 1, False), (64, 2, False), (16, 2, True)):
        other = rig.executor(block_size=block_size, merged=merged, config=settings(attention, threads=threads))
        assert np.array_equal(reference, run_in_chunks(other, tokens, shuffled, [100]))
        other.close()


class Forgetful:
    """Runs one sequence and, before each step, gives back what its window has passed: those blocks hold NaN."""

    def __init__(self, rig: AttentionRig, executor: NativeExecutor, block_size: int, blocks: int) -> None:
        self._executor, self._block_size = executor, block_size
        self._window = rig.window or 10**9
        self.table = list(range(blocks - 1, -1, -1))
        self._nan = b"\xff" * len(executor.read_blocks("full", [0]))

    def run(self, tokens: Sequence[int], start: int) -> npt.NDArray[np.float32]:
        """Output of each token, computed in one step."""
        for index in range(max(0, start - self._window + 1) // self._block_size):
            if self.table[index] != NO_BLOCK:
                self._executor.write_blocks("full", [self.table[index]], self._nan)
                self.table[index] = NO_BLOCK
        return self._executor.logits(step(plan_row(tokens, start=start, blocks=self.table)))[0]


@BOTH_FORMS
@pytest.mark.parametrize("kv_format", ["f16", "f32", "q8_0", "q4_0"])
@pytest.mark.parametrize("length", [7, 8, 9, 40])
def test_window_8_in_blocks_of_16(length: int, kv_format: str, attention: str) -> None:
    """A prompt of about the window and five times it, then 40 single tokens: every block is given back in its time."""
    rig = AttentionRig(4, 2, 12, rope=not KvFormat(kv_format).quantized, window=8)  # a code may part where rope rounds
    executor = rig.executor(config=settings(attention, kv_format=kv_format), num_blocks=8)
    executor.write_blocks("full", range(8), b"\xff" * (8 * len(executor.read_blocks("full", [0]))))
    one = Forgetful(rig, executor, 16, 5)
    tokens = rig.tokens(length + 40)
    found = [one.run(tokens[:length], 0)]
    found += [one.run([token], length + i) for i, token in enumerate(tokens[length:])]
    expected = rig.expected(tokens, KvFormat(kv_format))
    np.testing.assert_allclose(np.concatenate(found), expected, rtol=0, atol=1e-5)
    # The last token, at length + 39, reads from length + 32 on; blocks before that position's are gone.
    assert one.table.count(NO_BLOCK) == (length + 32) // 16
    executor.close()


@BOTH_FORMS
@pytest.mark.parametrize("block_size", [16, 32, 64])
@pytest.mark.parametrize("kv_format", ["f16", "q8_0", "q4_0"])
@pytest.mark.parametrize("window", [8, 64, 70])
@pytest.mark.parametrize("chunks", [[1] * 150, [40, 1, 50, 9, 50], [7] * 25])
def test_given_back_blocks_are_never_read(
    chunks: list[int], window: int, kv_format: str, block_size: int, attention: str
) -> None:
    """Steps of many tokens too, each after what its first token no longer reads was given back: the bits of a pool in
    which nothing was."""
    rig = AttentionRig(3, 1, 16, rope=True, window=window, soft_cap=5.0)
    tokens = rig.tokens(sum(chunks))
    blocks = -(-len(tokens) // block_size)
    config = settings(attention, kv_format=kv_format)
    keeping = rig.executor(config=config, block_size=block_size)
    reference = run_in_chunks(keeping, tokens, range(blocks), [])
    keeping.close()
    executor = rig.executor(config=config, block_size=block_size, num_blocks=blocks)
    one = Forgetful(rig, executor, block_size, blocks)
    found, start = [], 0
    for size in chunks:
        found.append(one.run(tokens[start : start + size], start))
        start += size
    assert np.array_equal(np.concatenate(found), reference)
    last = len(tokens) - chunks[-1]
    assert one.table.count(NO_BLOCK) == max(0, last - window + 1) // block_size
    executor.close()


@BOTH_FORMS
def test_a_passed_tokens_nan_does_not_reach_later_ones(attention: str) -> None:
    """Queries of one panel begin at different positions: a value is seen for exactly ``window`` tokens."""
    rig = AttentionRig(1, 1, 8, window=3)
    rig.v[5] = np.nan
    executor = rig.executor(config=settings(attention))
    tokens = [1, 2, 5, 4, 3, 6, 7, 0]
    found = executor.logits(step(plan_row(tokens, blocks=[0])))[0]
    assert np.isnan(found).all(axis=1).tolist() == [False, False, True, True, True, False, False, False]
    assert np.isfinite(found[[0, 1, 5, 6, 7]]).all()
    executor.close()


@pytest.mark.parametrize(
    ("start", "count", "table", "message"),
    [
        (40, 1, [NO_BLOCK, 1, NO_BLOCK], r"block_tables\[0\]\[2\] = -1"),  # written
        (40, 1, [NO_BLOCK, NO_BLOCK, 2], None),  # reads 33 to 40
        (39, 1, [NO_BLOCK, NO_BLOCK, 2], None),  # reads 32 to 39
        (38, 1, [NO_BLOCK, NO_BLOCK, 2], r"block_tables\[0\]\[1\] = -1"),  # reads 31 to 38
        (38, 8, [NO_BLOCK, 1, 2], None),
        (7, 1, [NO_BLOCK], r"block_tables\[0\]\[0\] = -1"),
        (40, 1, [-2, 1, 2], r"block_tables\[0\]\[0\] = -2"),
        (40, 1, [8, 1, 2], r"block_tables\[0\]\[0\] = 8"),
        (40, 1, [0, 1, 2], None),  # nothing given back yet
    ],
)
def test_plans_need_the_blocks_their_window_reaches(
    start: int, count: int, table: list[int], message: str | None
) -> None:
    """Window 8, blocks of 16."""
    executor = AttentionRig(1, 1, 8, window=8).executor(num_blocks=8)
    plan = step(plan_row([1] * count, start=start, blocks=table))
    if message is None:
        assert executor.logits(plan)[0].shape == (count, 8)
    else:
        with pytest.raises(ValueError, match=f"plan row 0: {message}"):
            executor.logits(plan)
    executor.close()


def test_a_layer_may_not_look_back_further_than_its_group_keeps() -> None:
    small = SmallGraph()
    small.groups.append(KvGroup(name="local", layers=1, kv_heads=1, head_dim=8, window=8))
    value = small.embed("x", np.eye(8))
    for window, text in ((9, "9"), (None, "all")):
        node = Attention(
            q=value,
            k=value,
            v=value,
            heads=1,
            kv_heads=1,
            head_dim=8,
            scale=1.0,
            group="local",
            layer=0,
            window=window,
            out=small.value(8),
        )
        small.nodes = [*small.nodes[:1], node]
        with pytest.raises(ModelLoadError, match=f"looks back on {text} tokens, and KV group local keeps 8"):
            executor_for(small, node.out)


@BOTH_FORMS
def test_two_groups_with_pools_of_their_own(attention: str) -> None:
    """A full group of one wide KV head in blocks of 32, a local one of two narrow heads in blocks of 16: the sum of
    both, token by token, from different block ids."""
    wide, narrow = AttentionRig(2, 1, 24, seed=1), AttentionRig(4, 2, 12, seed=2, window=9, soft_cap=2.0)
    small = SmallGraph()
    values = [wide.attend(small, "full"), narrow.attend(small, "local")]
    out = small.add(48, lambda o: Add(a=values[0], b=values[1], out=o))
    graph = small.graph(out)
    executor = NativeExecutor(graph, small.weights, settings(attention))
    executor.allocate_kv(
        [
            KvPoolSpec(group="full", num_blocks=3, block_size=32),
            KvPoolSpec(group="local", num_blocks=8, block_size=16),
        ]
    )
    tokens = wide.tokens(75)
    found = []
    for at, token in enumerate(tokens):
        local = [NO_BLOCK] * (max(0, at - 8) // 16)
        local += [BlockId(7 - index) for index in range(len(local), 5)]
        row = PlanRow(
            sequence=SequenceId(0),
            tokens=[token],
            start=at,
            block_tables=([BlockId(2), BlockId(0), BlockId(1)], local),
            num_outputs=1,
            options=plan_row([0]).options,
        )
        found.append(executor.logits(step(row))[0])
    expected = wide.expected(tokens, KvFormat.F32) + narrow.expected(tokens, KvFormat.F32)
    np.testing.assert_allclose(np.concatenate(found), expected, rtol=0, atol=1e-5)
    executor.close()


@BOTH_FORMS
def test_a_step_costs_the_window_and_not_the_context(attention: str) -> None:
    """32 tokens after 8,000, window 64: some 150 positions are looked at, not 8,000. The quickest of several steps, as
    others use the machine too; 60 times as quick is usual."""
    seconds = []
    for window in (None, 64):
        rig = AttentionRig(2, 2, 64, window=window)
        executor = rig.executor(config=settings(attention), num_blocks=512)
        plan = step(plan_row(rig.tokens(32), start=8000, blocks=range(502)))
        times = []
        for _ in range(5):
            executor.submit(plan)
            times.append(executor.collect().seconds)
        seconds.append(min(times))
        executor.close()
    assert seconds[1] * 5 < seconds[0]

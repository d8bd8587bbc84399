"""One test for each rule that keeps an answer independent of its neighbours (docs/architecture.md), on logits.

Each compares two ways to compute the same rows with ==, and breaks when the rule is broken in the kernels. Rules 6 and
7 (mixture of experts, LoRA) have no operation yet.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.tiny import GEMMA, VOCAB, Rig, TinyModel, tiny_model
from tidemill.core.config import ExecutorConfig
from tidemill.core.step import PlanRow, RowOptions, SequenceId, StepPlan
from tidemill.executors.protocol import Executor
from tidemill.graph.formats import WeightFormat

QUANTIZED = [WeightFormat.Q4_0, WeightFormat.Q4_1, WeightFormat.Q8_0]
FORMATS = [*QUANTIZED, WeightFormat.F16, WeightFormat.BF16, WeightFormat.F32]
BOTH_ARCHITECTURES = pytest.mark.parametrize("fields", [{}, GEMMA], ids=["llama", "gemma"])
"""The second has local attention, soft caps, norms per head and GELU."""
Fields = Mapping[str, object]
Logits = npt.NDArray[np.float32]


ONE_LAYER: Fields = {"num_hidden_layers": 1, "layer_types": ["sliding_attention"]}


def prompt(length: int, seed: int = 0) -> list[int]:
    return [1 + (seed * 37 + 11 * i + i * i * 3) % (VOCAB - 1) for i in range(length)]


def row(
    tokens: list[int], *, start: int = 0, blocks: list[int], options: RowOptions | None = None, groups: int = 1
) -> PlanRow:
    """All of a sequence's given tokens, drawn from at each of them; the same blocks in each KV group."""
    return PlanRow(
        sequence=SequenceId(blocks[0]),
        tokens=tokens,
        start=start,
        block_tables=(blocks,) * groups,
        num_outputs=len(tokens),
        options=options or RowOptions(),
    )


def logits(executor: Executor, *rows: PlanRow) -> list[Logits]:
    """Raw logits of a step, per row."""
    result = executor.logits(StepPlan(step=0, rows=rows))
    return [result[index] for index in range(len(rows))]


def in_chunks(executor: Executor, tokens: list[int], size: int, blocks: list[int], *, groups: int = 1) -> Logits:
    """Logits at every position, computed in steps of ``size`` tokens."""
    parts = [
        logits(executor, row(tokens[at : at + size], start=at, blocks=blocks, groups=groups))[0]
        for at in range(0, len(tokens), size)
    ]
    return np.concatenate(parts)


def same(a: Logits, b: Logits) -> bool:
    """Equal bits, and numbers at all."""
    assert np.isfinite(a).all()
    return a.tobytes() == b.tobytes()


@pytest.mark.parametrize("format_", FORMATS)
def test_rule_1_each_output_has_one_order_of_sums(format_: WeightFormat) -> None:
    """Every row-count variant of the linear kernels gives the same bits, and so do one thread and two."""
    model = tiny_model(format_, num_hidden_layers=1)
    found = []
    for threads, variant in [(1, 0), (1, 1), (1, 2), (1, 3), (1, 4), (2, 0)]:
        executor = Rig(model=model, executor=ExecutorConfig(threads=threads), row_variant=variant).make_executor()
        found.append(logits(executor, row(prompt(13), blocks=[0]))[0])
        executor.close()
    assert all(same(found[0], other) for other in found[1:])


@BOTH_ARCHITECTURES
@pytest.mark.parametrize("attention", ["tiled", "materialized"])
def test_rule_2_attention_tiles_are_absolute(attention: str, fields: Fields) -> None:
    """Block sizes 16, 32 and 64, one thread or two, and chunks that begin anywhere see the same tiles."""
    model = tiny_model(WeightFormat.F32, **fields)
    tokens = prompt(150)
    found = []
    for block_size, threads, chunk in [(16, 1, 150), (32, 1, 150), (64, 1, 150), (16, 2, 150), (16, 1, 37), (32, 2, 1)]:
        config = ExecutorConfig(threads=threads, attention=attention)  # type: ignore[arg-type]
        executor = Rig(model=model, executor=config, block_size=block_size, num_blocks=16).make_executor()
        blocks = [11, 3, 7, 0, 1, 9, 12, 15, 2, 14][: -(-150 // block_size)]
        found.append(in_chunks(executor, tokens, chunk, blocks, groups=len(model.graph.kv_groups)))
        executor.close()
    assert all(same(found[0], other) for other in found[1:])


@BOTH_ARCHITECTURES
@pytest.mark.parametrize("kv_format", ["f16", "f32"])
def test_rule_3_keys_and_values_are_read_as_rounded(kv_format: str, fields: Fields) -> None:
    """A token that attends within its own chunk reads what a later step would read: the rounded key and value."""
    model = tiny_model(WeightFormat.F32, **fields)
    executor = Rig(
        model=model,
        executor=ExecutorConfig(threads=1, kv_format=kv_format),  # type: ignore[arg-type]
    ).make_executor()
    tokens, groups = prompt(70), len(model.graph.kv_groups)
    at_once = in_chunks(executor, tokens, 70, [0, 1, 2, 3, 4], groups=groups)
    one_by_one = in_chunks(executor, tokens, 1, [5, 6, 7, 8, 9], groups=groups)
    executor.close()
    assert same(at_once, one_by_one)


def test_rule_3_the_format_matters() -> None:
    """f16 and f32 keys differ: rounding does take place."""
    found = []
    for kv_format in ("f16", "f32"):
        config = ExecutorConfig(threads=1, kv_format=kv_format)  # type: ignore[arg-type]
        executor = Rig(model=tiny_model(WeightFormat.F32), executor=config).make_executor()
        found.append(in_chunks(executor, prompt(70), 70, [0, 1, 2, 3, 4]))
        executor.close()
    assert not np.array_equal(found[0], found[1])
    assert np.abs(found[0] - found[1]).max() < 0.2


@BOTH_ARCHITECTURES
@pytest.mark.parametrize("format_", [WeightFormat.F32, WeightFormat.F16])
def test_rule_4_tails_are_computed_as_the_rest(format_: WeightFormat, fields: Fields) -> None:
    """With widths that fill no vector, the value of an element does not depend on whether it stands in a tail.

    The last 3 of 35 feed-forward units of one model are the first 3 of another whose units are rotated: a tail with
    its own exp or its own rounding would change single products. Sums run in one order, so only one unit is nonzero.
    """
    model = tiny_model(format_, **{**fields, **ONE_LAYER}, intermediate_size=35, hidden_size=52, head_dim=12)
    weights = dict(model.weights)
    found = []
    for shift in (0, 3, 17, 34):
        rotated = {}
        for name, tensor in weights.items():
            values = tensor.rows.copy()
            if "gate_proj" in name or "up_proj" in name:
                values = np.roll(values, shift, axis=0)
            if "down_proj" in name:
                item = tensor.format.block_bytes
                units = values.reshape(values.shape[0], 35, item)
                units[:, np.arange(35) != 32] = 0
                values = np.roll(units, shift, axis=1).reshape(values.shape)
            rotated[name] = type(tensor)(name=name, format=tensor.format, shape=tensor.shape, data=values.reshape(-1))
        executor = Rig(model=TinyModel(graph=model.graph, weights=rotated), num_blocks=4).make_executor()
        found.append(logits(executor, row(prompt(9), blocks=[0]))[0])
        executor.close()
    assert all(same(found[0], other) for other in found[1:])


@pytest.mark.parametrize("cap", [1.0, 8.0])
def test_rule_4_a_capped_logit_does_not_depend_on_its_column(cap: float) -> None:
    """A vocabulary of 35: the last three logits fill no vector, and are those of a model whose tokens are rotated."""
    fields = {**GEMMA, **ONE_LAYER, "vocab_size": 35, "final_logit_softcapping": cap}
    model = tiny_model(WeightFormat.F32, **fields, tie_word_embeddings=False)
    found = []
    for shift in (0, 3, 17, 34):
        head = model.weights["lm_head.weight"]
        rotated = type(head)(
            name=head.name, format=head.format, shape=head.shape, data=np.roll(head.rows, shift, axis=0).reshape(-1)
        )
        weights = {**model.weights, head.name: rotated}
        executor = Rig(model=TinyModel(graph=model.graph, weights=weights), num_blocks=4).make_executor()
        found.append(np.roll(logits(executor, row([1, 30, 7, 12], blocks=[0]))[0], -shift, axis=1))
        executor.close()
    assert np.abs(found[0]).max() > cap / 4
    assert all(same(found[0], other) for other in found[1:])


@BOTH_ARCHITECTURES
@pytest.mark.parametrize("format_", QUANTIZED)
def test_rule_5_activations_are_rounded_per_token(format_: WeightFormat, fields: Fields) -> None:
    """Neighbours with activations of their own leave a row alone, wherever in a panel of rows it stands."""
    executor = Rig(model=tiny_model(format_, **{**fields, **ONE_LAYER})).make_executor()
    tokens = prompt(6)
    alone = logits(executor, row(tokens, blocks=[0]))[0]
    for neighbours in (1, 2, 3, 15):
        rows = [row(prompt(5, seed=9 + i), blocks=[1 + i]) for i in range(neighbours)]
        assert same(alone, logits(executor, *rows, row(tokens, blocks=[40]))[-1])
        assert same(alone, logits(executor, row(tokens, blocks=[41]), *rows)[0])
    executor.close()


def draws(executor: Executor, *rows: PlanRow) -> list[tuple[int, ...]]:
    executor.submit(StepPlan(step=0, rows=rows))
    return [outputs.tokens for outputs in executor.collect().rows]


def test_rule_8_noise_depends_on_seed_choice_and_position_only() -> None:
    """The same seed, choice and position draw the same token in any row, step or chunk; any other changes draws."""
    executor = Rig(model=tiny_model(WeightFormat.F32)).make_executor()
    options = RowOptions(temperature=2.0, seed=12345)
    tokens = prompt(40)
    alone = draws(executor, row(tokens, blocks=[0, 1, 2], options=options))[0]
    rows = [row(prompt(21, seed=i), blocks=[10 + 2 * i, 11 + 2 * i], options=options) for i in range(7)]
    assert draws(executor, *rows, row(tokens, blocks=[3, 4, 5], options=options))[-1] == alone
    singly = [
        draws(executor, row([token], start=at, blocks=[6, 7, 8], options=options))[0][0]
        for at, token in enumerate(tokens)
    ]
    assert tuple(singly) == alone
    for other in (
        RowOptions(temperature=2.0, seed=12346),
        RowOptions(temperature=2.0, seed=12345 + 2**32),
        RowOptions(temperature=2.0, seed=12345, choice=1),
    ):
        assert draws(executor, row(tokens, blocks=[0, 1, 2], options=other))[0] != alone
    # The same token at every position has much the same logits, and yet the draws differ: the position is in the key.
    assert len(set(draws(executor, row([7] * 40, blocks=[0, 1, 2], options=options))[0])) > 10
    executor.close()


def test_rule_8_verifying_a_draft_draws_what_decoding_would() -> None:
    """Proposals that are right are all confirmed, at any temperature, with penalties that count them."""
    executor = Rig(model=tiny_model(WeightFormat.Q4_1)).make_executor()
    options = RowOptions(temperature=1.0, seed=77)
    tokens = prompt(20)
    drawn: list[int] = []
    start = 0
    feed = tokens
    for _ in range(12):
        plan = PlanRow(
            sequence=SequenceId(0), tokens=feed, start=start, block_tables=([0, 1, 2],), num_outputs=1, options=options
        )
        token = draws(executor, plan)[0][0]
        start += len(feed)
        feed = [token]
        drawn.append(token)
    draft = PlanRow(
        sequence=SequenceId(1),
        tokens=[*tokens, *drawn[:-1]],
        start=0,
        block_tables=([3, 4, 5],),
        num_outputs=12,
        options=options,
    )
    assert list(draws(executor, draft)[0]) == drawn
    executor.close()


def test_rule_9_what_runs_is_named() -> None:
    """Bits are promised within one instruction set and number format: the executor says which."""
    lines = set()
    for isa in ("avx2", "portable"):
        for numerics in ("fast", "exact"):
            config = ExecutorConfig(isa=isa, numerics=numerics, threads=1)  # type: ignore[arg-type]
            executor = Rig(model=tiny_model(WeightFormat.Q4_1), executor=config).make_executor()
            assert isa in executor.description
            assert numerics in executor.description
            lines.add(executor.description)
            executor.close()
    assert len(lines) == 4

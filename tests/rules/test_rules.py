"""Tests for each rule that keeps an answer independent of its neighbours (docs/architecture.md), on logits and draws.

Each compares two ways to compute the same rows with ==, and breaks when the rule is broken in the kernels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.isas import EVERY_ISA
from tests.support.tiny import (
    VARIANTS,
    VOCAB,
    Rig,
    TinyModel,
    encode,
    request,
    run,
    tiny_adapter,
    tiny_adapters,
    tiny_model,
)
from tidemill.core.config import ExecutorConfig
from tidemill.core.step import PenaltyCounts, PlanRow, RowOptions, SequenceId, StepPlan
from tidemill.executors.native import _native
from tidemill.executors.protocol import Executor
from tidemill.graph.formats import WeightFormat

QUANTIZED = [format_ for format_ in WeightFormat if format_.quantized]
FORMATS = list(WeightFormat)
ISAS = _native.supported_isas()
Logits = npt.NDArray[np.float32]
Values = npt.NDArray[np.float32]


def prompt(length: int, seed: int = 0) -> list[int]:
    return [1 + (seed * 37 + 11 * i + i * i * 3) % (VOCAB - 1) for i in range(length)]


def row(
    tokens: list[int], *, start: int = 0, blocks: list[int], options: RowOptions | None = None, adapter: int = 0
) -> PlanRow:
    """All of a sequence's given tokens, drawn from at each of them."""
    return PlanRow(
        sequence=SequenceId(blocks[0]),
        tokens=tokens,
        start=start,
        block_tables=(blocks,),
        num_outputs=len(tokens),
        options=options or RowOptions(),
        adapter=adapter,
    )


def logits(executor: Executor, *rows: PlanRow) -> list[Logits]:
    """Raw logits of a step, per row."""
    result = executor.logits(StepPlan(step=0, rows=rows))
    return [result[index] for index in range(len(rows))]


def in_chunks(executor: Executor, tokens: list[int], size: int, blocks: list[int], *, adapter: int = 0) -> Logits:
    """Logits at every position, computed in steps of ``size`` tokens."""
    parts = [
        logits(executor, row(tokens[at : at + size], start=at, blocks=blocks, adapter=adapter))[0]
        for at in range(0, len(tokens), size)
    ]
    return np.concatenate(parts)


def same(a: Logits, b: Logits) -> bool:
    """Equal bits, and numbers at all."""
    assert np.isfinite(a).all()
    return a.tobytes() == b.tobytes()


@pytest.mark.parametrize("isa", EVERY_ISA)
@pytest.mark.parametrize("numerics", ["fast", "exact"])
@pytest.mark.parametrize("format_", FORMATS)
def test_rule_1_each_output_has_one_order_of_sums(format_: WeightFormat, numerics: str, isa: str) -> None:
    """Every row-count variant of the linear kernels gives the same bits, and so do one thread and two."""
    model = tiny_model(format_, num_hidden_layers=1)
    found = []
    for threads, variant in [(1, 0), (1, 1), (1, 2), (1, 3), (1, 4), (2, 0)]:
        config = ExecutorConfig(threads=threads, numerics=numerics, isa=isa)  # type: ignore[arg-type]
        executor = Rig(model=model, executor=config, row_variant=variant).make_executor()
        found.append(logits(executor, row(prompt(13), blocks=[0]))[0])
        executor.close()
    assert all(same(found[0], other) for other in found[1:])


@pytest.mark.parametrize("isa", EVERY_ISA)
@pytest.mark.parametrize("numerics", ["fast", "exact"])
@pytest.mark.parametrize("format_", FORMATS)
def test_rule_1_the_number_of_rows_does_not_matter(format_: WeightFormat, numerics: str, isa: str) -> None:
    """Thirteen sequences of one token, computed by ones, twos, threes, fives or all at once.

    A panel of one row, as in decoding a single stream, has a kernel of its own that no forced variant replaces.
    """
    config = ExecutorConfig(threads=1, numerics=numerics, isa=isa)  # type: ignore[arg-type]
    executor = Rig(model=tiny_model(format_, num_hidden_layers=1), executor=config).make_executor()
    rows = [row([token], blocks=[block]) for block, token in enumerate(prompt(13))]
    found = [
        np.concatenate([one for at in range(0, 13, size) for one in logits(executor, *rows[at : at + size])])
        for size in (13, 1, 2, 3, 5)
    ]
    executor.close()
    assert all(same(found[0], other) for other in found[1:])


@pytest.mark.parametrize("kv_format", ["f16", "q8_0", "q4_0"])
@pytest.mark.parametrize("attention", ["tiled", "materialized"])
def test_rule_2_attention_tiles_are_absolute(attention: str, kv_format: str) -> None:
    """Block sizes 16, 32 and 64, one thread or two, and chunks that begin anywhere see the same tiles."""
    model = tiny_model(WeightFormat.F32)
    tokens = prompt(150)
    found = []
    for block_size, threads, chunk in [(16, 1, 150), (32, 1, 150), (64, 1, 150), (16, 2, 150), (16, 1, 37), (32, 2, 1)]:
        config = ExecutorConfig(threads=threads, attention=attention, kv_format=kv_format)  # type: ignore[arg-type]
        executor = Rig(model=model, executor=config, block_size=block_size, num_blocks=16).make_executor()
        blocks = [11, 3, 7, 0, 1, 9, 12, 15, 2, 14][: -(-150 // block_size)]
        found.append(in_chunks(executor, tokens, chunk, blocks))
        executor.close()
    assert all(same(found[0], other) for other in found[1:])


@pytest.mark.parametrize("kv_format", ["f16", "q8_0", "q4_0"])
@pytest.mark.parametrize("isa", EVERY_ISA)
def test_rule_2_a_long_context_is_split_over_threads(isa: str, kv_format: str) -> None:
    """The last tokens of 600, one a step: two threads share their three segments, one thread walks through them, and a
    chunk of many tokens is not split at all."""
    model = tiny_model(WeightFormat.F32)
    tokens = prompt(600)
    found = []
    for threads, chunks in [
        (1, [600]),
        (2, [600]),
        (1, [590] + 10 * [1]),
        (2, [590] + 10 * [1]),
        (2, [300, 290, 3, 7]),
    ]:
        config = ExecutorConfig(threads=threads, isa=isa, kv_format=kv_format)  # type: ignore[arg-type]
        executor = Rig(model=model, executor=config, num_blocks=40).make_executor()
        blocks = [*range(20, 40), *range(20)]
        parts, at = [], 0
        for size in chunks:
            parts += logits(executor, row(tokens[at : at + size], start=at, blocks=blocks))
            at += size
        found.append(np.concatenate(parts)[-10:])
        executor.close()
    assert all(same(found[0], other) for other in found[1:])


@pytest.mark.parametrize("isa", EVERY_ISA)
@pytest.mark.parametrize("kv_format", ["f16", "f32", "q8_0", "q4_0"])
def test_rule_3_keys_and_values_are_read_as_rounded(kv_format: str, isa: str) -> None:
    """A token that attends within its own chunk, be it of a prompt or of guesses, reads what a later step would read:
    the rounded key and value."""
    executor = Rig(
        model=tiny_model(WeightFormat.F32),
        executor=ExecutorConfig(threads=1, kv_format=kv_format, isa=isa),  # type: ignore[arg-type]
    ).make_executor()
    tokens = prompt(70)
    at_once = in_chunks(executor, tokens, 70, [0, 1, 2, 3, 4])
    one_by_one = in_chunks(executor, tokens, 1, [5, 6, 7, 8, 9])
    by_sixes = in_chunks(executor, tokens, 6, [14, 13, 12, 11, 10])
    executor.close()
    assert same(at_once, one_by_one)
    assert same(at_once, by_sixes)


def test_rule_3_the_format_matters() -> None:
    """Keys of any two formats differ: rounding does take place, in fewer bits by more."""
    found = []
    for kv_format in ("f32", "f16", "q8_0", "q4_0"):
        config = ExecutorConfig(threads=1, kv_format=kv_format)  # type: ignore[arg-type]
        executor = Rig(model=tiny_model(WeightFormat.F32), executor=config).make_executor()
        found.append(in_chunks(executor, prompt(70), 70, [0, 1, 2, 3, 4]))
        executor.close()
    assert 0 < np.abs(found[0] - found[1]).max() < 0.2
    far = [np.abs(found[0] - other).mean() for other in found]
    assert 0 < 2 * far[1] < far[2] < far[3] / 2
    # The first token reads one value only, its own: that one is rounded as well.
    assert len({row[0].tobytes() for row in found}) == 4


@pytest.mark.parametrize("format_", [WeightFormat.F32, WeightFormat.F16])
def test_rule_4_tails_are_computed_as_the_rest(format_: WeightFormat) -> None:
    """With widths that fill no vector, the value of an element does not depend on whether it stands in a tail.

    The last 3 of 35 feed-forward units of one model are the first 3 of another whose units are rotated: a tail with
    its own exp or its own rounding would change single products. Sums run in one order, so only one unit is nonzero.
    """
    model = tiny_model(format_, num_hidden_layers=1, intermediate_size=35, hidden_size=52, head_dim=12)
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


def changed(model: TinyModel, change: Callable[[str, Values], Values]) -> TinyModel:
    """The f32 model with each weight replaced by ``change(name, values)``."""
    weights = {
        name: encode(name, change(name, tensor.data.view("<f4").reshape(tensor.shape)), WeightFormat.F32)
        for name, tensor in model.weights.items()
    }
    return TinyModel(graph=model.graph, weights=weights)


def logits_of_each(models: list[TinyModel], isa: str) -> list[Logits]:
    found = []
    for model in models:
        config = ExecutorConfig(threads=1, kv_format="f32", isa=isa)  # type: ignore[arg-type]
        executor = Rig(model=model, executor=config, num_blocks=4).make_executor()
        found.append(logits(executor, row(prompt(9), blocks=[0]))[0])
        executor.close()
    return found


@pytest.mark.parametrize("isa", EVERY_ISA)
def test_rule_4_a_norm_has_no_tail_of_its_own(isa: str) -> None:
    """An element of the norm is worth the same in all 52 places, the last four of which fill no vector.

    Embeddings are small whole numbers, so the sum of squares is exact in any order. The layer adds nothing, and the
    logits read one element.
    """
    model = tiny_model(WeightFormat.F32, num_hidden_layers=1, hidden_size=52, tie_word_embeddings=False)

    def roll(shift: int, name: str, values: Values) -> Values:
        if "o_proj" in name or "down_proj" in name:
            return np.zeros_like(values)
        if "embed" in name:
            return np.roll(np.rint(8 * values), shift, axis=-1)
        if "lm_head" in name:
            return np.roll(np.where(np.arange(52) == 0, values, 0).astype(np.float32), shift, axis=-1)
        return np.roll(values, shift, axis=-1) if values.ndim == 1 else values

    models = [changed(model, partial(roll, shift)) for shift in range(52)]
    found = logits_of_each(models, isa)
    assert np.abs(found[0]).max() > 0.1
    assert all(same(found[0], other) for other in found[1:])


@pytest.mark.parametrize("isa", EVERY_ISA)
def test_rule_4_a_rotation_has_no_tail_of_its_own(isa: str) -> None:
    """With rope_theta 1 all 20 pairs of a head turn alike: scores do not depend on which one of them is not zero."""
    model = tiny_model(WeightFormat.F32, num_hidden_layers=1, head_dim=40, rope_theta=1.0)

    def only(pair: int, name: str, values: Values) -> Values:
        if "q_proj" not in name and "k_proj" not in name:
            return values
        heads = values.reshape(-1, 40, values.shape[-1])
        moved = np.zeros_like(heads)
        moved[:, [pair, pair + 20]] = heads[:, [0, 20]]
        return moved.reshape(values.shape)

    models = [changed(model, partial(only, pair)) for pair in range(20)]
    found = logits_of_each(models, isa)
    assert all(same(found[0], other) for other in found[1:])
    without = changed(model, lambda name, values: only(0, name, values) * np.float32("q_proj" not in name))
    assert not np.array_equal(found[0], logits_of_each([without], isa)[0])


def test_rule_4_kernels_take_no_float_functions_from_the_system() -> None:
    """exp and its kin are vector code of the project: libm's differ from it, and between systems, in the last bit."""
    module = Path(str(_native.__file__)).read_bytes()
    names = ("expf", "exp2f", "expm1f", "logf", "log2f", "log1pf", "powf", "sinf", "cosf", "tanhf", "erff")
    found = [name for name in names for mark in ("", "_") if f"\0{mark}{name}\0".encode() in module]
    assert found == []
    assert any(f"\0{mark}exp\0".encode() in module for mark in ("", "_"))  # in double, by the sampler: names are found


def test_rule_4_every_thread_keeps_denormal_numbers() -> None:
    """Logits below 2^-126 are neither zero nor dependent on the thread that computes them."""
    tiny = tiny_model(WeightFormat.F32, num_hidden_layers=1, tie_word_embeddings=False)
    model = changed(tiny, lambda name, values: values * np.float32(1e-38) if "lm_head" in name else values)
    found = []
    for threads in (1, 2):
        executor = Rig(model=model, executor=ExecutorConfig(threads=threads)).make_executor()
        rows = [row(prompt(16, seed=block), blocks=[block]) for block in range(20)]
        found += [np.concatenate(logits(executor, *rows)) for _ in range(10)]
        executor.close()
    small = np.abs(found[0])
    assert ((small > 0) & (small < np.finfo(np.float32).tiny)).mean() > 0.1
    assert all(same(found[0], other) for other in found[1:])


@pytest.mark.parametrize("isa", EVERY_ISA)
@pytest.mark.parametrize("format_", QUANTIZED)
def test_rule_5_activations_are_rounded_per_token(format_: WeightFormat, isa: str) -> None:
    """Neighbours with activations of their own leave a row alone, wherever in a panel of rows it stands."""
    config = ExecutorConfig(threads=1, isa=isa)  # type: ignore[arg-type]
    executor = Rig(model=tiny_model(format_, num_hidden_layers=1), executor=config).make_executor()
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


MIXTURE = {**VARIANTS["mixtral"], "num_hidden_layers": 1}


@pytest.mark.parametrize("isa", EVERY_ISA)
def test_rule_6_ties_go_to_the_lowest_expert(isa: str) -> None:
    """A router of zeros: all six experts tie, the first two are taken, so what the other four hold does not matter."""
    model = tiny_model(WeightFormat.F32, **MIXTURE)

    def without(experts: range, name: str, values: Values) -> Values:
        if "mlp.gate." in name:
            return np.zeros_like(values)
        stacks = values.reshape(6, -1, values.shape[-1]).copy() if "experts.down" in name else None
        if stacks is None:
            return values
        stacks[list(experts)] = 0.0
        return stacks.reshape(values.shape)

    tied, first_two, others = (
        changed(model, partial(without, experts)) for experts in (range(0), range(2, 6), range(2))
    )
    found = logits_of_each([tied, first_two, others], isa)
    assert same(found[0], found[1])
    assert not same(found[0], found[2])


@pytest.mark.parametrize("isa", EVERY_ISA)
@pytest.mark.parametrize("numerics", ["fast", "exact"])
@pytest.mark.parametrize("format_", FORMATS)
def test_rule_6_an_expert_takes_every_row_that_chooses_it(format_: WeightFormat, numerics: str, isa: str) -> None:
    """Forty sequences of one token all choose the same experts, among others that choose otherwise: none is dropped,
    and each has the bits it has alone."""
    config = ExecutorConfig(threads=2, numerics=numerics, isa=isa)  # type: ignore[arg-type]
    executor = Rig(model=tiny_model(format_, **MIXTURE), executor=config).make_executor()
    tokens = [7] * 40 + prompt(13)
    together = logits(executor, *(row([token], blocks=[block]) for block, token in enumerate(tokens)))
    alone = [logits(executor, row([token], blocks=[60]))[0] for token in tokens[39:]]
    executor.close()
    assert all(same(one, together[0]) for one in together[:40])
    assert all(same(one, other) for one, other in zip(together[39:], alone, strict=True))


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


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "penalties",
    [{}, {"repetition_penalty": 1.5}, {"presence_penalty": 1.0}, {"frequency_penalty": 0.8}],
    ids=lambda one: next(iter(one), "plain"),
)
def test_rule_8_verifying_a_draft_draws_what_decoding_would(penalties: dict[str, Any], temperature: float) -> None:
    """Proposals that are right are all confirmed, at any temperature, with penalties that count them."""
    executor = Rig(model=tiny_model(WeightFormat.Q4_1)).make_executor()
    tokens = prompt(20)
    drawn: list[int] = []

    def verify(feed: list[int], blocks: list[int], outputs: int) -> tuple[int, ...]:
        """Draws at the last positions of prompt and tokens so far; penalties count what is known before them."""
        known = Counter(drawn[: len(drawn) + 1 - outputs])
        ids = sorted({*tokens, *known})
        options = RowOptions(
            temperature=temperature,
            seed=77,
            penalties=PenaltyCounts(ids=ids, output_counts=[known[id_] for id_ in ids]) if penalties else None,
            **penalties,
        )
        start = len(tokens) + len(drawn) - len(feed)
        plan = PlanRow(
            sequence=SequenceId(0),
            tokens=feed,
            start=start,
            block_tables=(blocks,),
            num_outputs=outputs,
            options=options,
        )
        return draws(executor, plan)[0]

    for _ in range(12):
        drawn += verify(drawn[-1:] or tokens, [0, 1, 2], 1)
    last = drawn.pop()
    confirmed = verify([*tokens, *drawn], [3, 4, 5], 12)
    executor.close()
    assert list(confirmed) == [*drawn, last]


@pytest.mark.parametrize("isa", EVERY_ISA)
def test_rule_7_deltas_are_of_unquantised_activations(isa: str) -> None:
    """A head of zeros in 8 bits: its logits are the adapter's alone, and rounded activations would show in them."""
    model = tiny_model(WeightFormat.F32, tie_word_embeddings=False)
    head = encode("lm_head.weight", np.zeros(model.graph.spec("lm_head.weight").shape, np.float32), WeightFormat.Q8_0)
    model = replace(model, weights={**model.weights, "lm_head.weight": head})
    found = {}
    for numerics in ("fast", "exact"):
        config = ExecutorConfig(threads=1, numerics=numerics, isa=isa, kv_format="f32")  # type: ignore[arg-type]
        rig = Rig(model=model, executor=config, adapters=[tiny_adapter(model.graph, "lm_head", rank=5)])
        executor = rig.make_executor()
        found[numerics] = logits(executor, row(prompt(9), blocks=[0], adapter=1))[0]
        executor.close()
    assert same(found["fast"], found["exact"])
    assert found["fast"].std() > 0.5


@pytest.mark.parametrize("isa", EVERY_ISA)
@pytest.mark.parametrize("numerics", ["fast", "exact"])
def test_rule_7_deltas_are_never_merged(numerics: str, isa: str) -> None:
    """Rows with other adapters or none, in one step with any number of each: the same bits as alone, and those without
    one as if there were none in the executor."""
    model = tiny_model(WeightFormat.Q4_1)
    config = ExecutorConfig(threads=1, numerics=numerics, isa=isa)  # type: ignore[arg-type]
    plain = Rig(model=model, executor=config).make_executor()
    executor = Rig(model=model, executor=config, adapters=tiny_adapters(model)).make_executor()
    rows = [row(prompt(1 + 5 * i % 14, i), blocks=[i], adapter=(0, 1, 2, 3, 3, 0, 3, 2, 3)[i]) for i in range(9)]
    together = logits(executor, *rows)
    reversed_ = logits(executor, *rows[::-1])[::-1]
    for one, beside, behind in zip(rows, together, reversed_, strict=True):
        alone = logits(executor, one)[0]
        assert same(alone, beside)
        assert same(alone, behind)
        assert same(alone, logits(plain, replace(one, adapter=0))[0]) == (one.adapter == 0)
    executor.close()
    plain.close()


@pytest.mark.parametrize("executor_name", ["native", "reference"])
def test_rule_7_holds_for_chunks_threads_and_both_executors(executor_name: str) -> None:
    model = tiny_model(WeightFormat.Q8_0)
    tokens = prompt(45)
    for adapter in (1, 2, 3):
        found = []
        for threads, chunk in ((1, 45), (2, 45), (2, 16), (1, 1)):
            config = ExecutorConfig(threads=threads, executor=executor_name)  # type: ignore[arg-type]
            executor = Rig(model=model, executor=config, adapters=tiny_adapters(model)).make_executor()
            found.append(in_chunks(executor, tokens, chunk, [2, 0, 1], adapter=adapter))
            executor.close()
        assert all(same(found[0], other) for other in found[1:])


def test_rule_8_the_engine_asks_for_the_noise_of_seed_choice_and_position() -> None:
    """Each choice of a request is what the executor draws for its number, alone or among the others."""
    rig = Rig(model=tiny_model(WeightFormat.Q4_1))
    tokens = prompt(20)
    sampling = {"temperature": 2.0, "seed": -5, "max_tokens": 8}
    loop = rig.make_loop()
    several = run(loop, [request("r", tokens, n=3, **sampling)])
    single = run(loop, [request("r", tokens, n=1, **sampling)])
    loop.close()
    assert several["r", 0] == single["r", 0]
    executor = rig.make_executor()
    for choice in range(3):
        answer = list(several["r", choice].tokens)
        options = RowOptions(temperature=2.0, seed=2**64 - 5, choice=choice)
        drawn = draws(executor, row([*tokens, *answer[:-1]], blocks=[0, 1], options=options))[0]
        assert list(drawn[len(tokens) - 1 :]) == answer
    executor.close()
    assert len({several["r", choice].tokens for choice in range(3)}) == 3


def described(**settings: object) -> str:
    config = ExecutorConfig(threads=1, **settings)  # type: ignore[arg-type]
    executor = Rig(model=tiny_model(WeightFormat.Q4_1), executor=config).make_executor()
    executor.close()
    return executor.description


def test_rule_9_what_runs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bits are promised within one executor, instruction set and number format: the executor says which."""
    lines = set()
    for isa in ISAS:
        for numerics in ("fast", "exact"):
            for kv_format in ("f16", "f32", "q8_0", "q4_0"):
                for attention in ("tiled", "materialized"):
                    settings = {"isa": isa, "numerics": numerics, "kv_format": kv_format, "attention": attention}
                    line = described(**settings)
                    assert line.startswith("native: ")
                    assert all(value in line for value in settings.values())
                    lines.add(line)
    assert len(lines) == 16 * len(ISAS)
    assert described(executor="reference") not in lines
    # What was chosen is named, not that it was left to choose.
    monkeypatch.delenv("TIDEMILL_ISA", raising=False)
    assert described(isa="auto") == described(isa=ISAS[0])
    monkeypatch.setenv("TIDEMILL_ISA", "portable")
    assert described(isa="auto") == described(isa="portable")

"""The same rules on a model with local attention, soft caps, norms per head and GELU, in two KV groups."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.isas import EVERY_ISA
from tests.support.tiny import GEMMA, VOCAB, Rig, TinyModel, encode, tiny_model
from tidemill.core.config import ExecutorConfig
from tidemill.core.step import NO_BLOCK, BlockId, PlanRow, RowOptions, SequenceId, StepPlan
from tidemill.executors.protocol import Executor
from tidemill.graph.formats import WeightFormat

ONE_LAYER: Mapping[str, object] = {**GEMMA, "num_hidden_layers": 1, "layer_types": ["full_attention"]}
Values = npt.NDArray[np.float32]


def prompt(length: int, seed: int = 0) -> list[int]:
    return [1 + (seed * 37 + 11 * i + i * i * 3) % (VOCAB - 1) for i in range(length)]


def logits(executor: Executor, *rows: tuple[list[int], int, list[list[int]]]) -> list[Values]:
    """Logits at every position of rows (tokens, start, block table per group)."""
    plan = StepPlan(
        step=0,
        rows=tuple(
            PlanRow(
                sequence=SequenceId(index),
                tokens=tokens,
                start=start,
                block_tables=tuple([BlockId(block) for block in table] for table in tables),
                num_outputs=len(tokens),
                options=RowOptions(),
            )
            for index, (tokens, start, tables) in enumerate(rows)
        ),
    )
    found = executor.logits(plan)
    return [found[index] for index in range(len(rows))]


def same(a: Values, b: Values) -> bool:
    """Equal bits, and numbers at all."""
    assert np.isfinite(a).all()
    return a.tobytes() == b.tobytes()


@pytest.mark.parametrize("isa", EVERY_ISA)
@pytest.mark.parametrize("attention", ["tiled", "materialized"])
@pytest.mark.parametrize("kv_format", ["f16", "f32", "q8_0", "q4_0"])
def test_rules_2_and_3_chunks_blocks_and_threads_change_nothing(kv_format: str, attention: str, isa: str) -> None:
    """As a whole with every block kept; then in chunks, each begun after what the window has passed was given back to
    a pool of NaN."""
    model = tiny_model(WeightFormat.F32, **GEMMA, num_key_value_heads=6)  # a panel of queries has six tokens
    names = [group.name for group in model.graph.kv_groups]
    assert names == ["window", "full"]
    tokens = prompt(150)
    found = []
    for block_size, threads, chunk in [(16, 1, 150), (16, 2, 37), (32, 1, 1), (64, 2, 50)]:
        config = ExecutorConfig(threads=threads, attention=attention, kv_format=kv_format, isa=isa)  # type: ignore[arg-type]
        executor = Rig(model=model, executor=config, block_size=block_size, num_blocks=16).make_executor()
        order = [11, 3, 7, 0, 1, 9, 12, 15, 2, 14][: -(-150 // block_size)]
        local, nan = list(order), b"\xff" * len(executor.read_blocks("window", [0]))
        parts = []
        for at in range(0, 150, chunk):
            for index in range(max(0, at - 40 + 1) // block_size):
                executor.write_blocks("window", [order[index]], nan)
                local[index] = NO_BLOCK
            parts += logits(executor, (tokens[at : at + chunk], at, [local, order[::-1]]))
        found.append(np.concatenate(parts))
        executor.close()
    assert all(same(found[0], other) for other in found[1:])


def rolled(model: TinyModel, shift: int, axis: int, *names: str, only: int | None = None) -> TinyModel:
    """The f32 model with the named weights rolled along an axis; ``only``: and zero elsewhere in down_proj."""
    weights = {}
    for name, tensor in model.weights.items():
        values = tensor.data.view("<f4").reshape(tensor.shape).copy()
        if only is not None and "down_proj" in name:
            values[:, np.arange(values.shape[1]) != only] = 0
            values = np.roll(values, shift, axis=1)
        elif any(part in name for part in names):
            values = np.roll(values, shift, axis=axis)
        weights[name] = encode(name, values, WeightFormat.F32)
    return TinyModel(graph=model.graph, weights=weights)


def one_row(model: TinyModel, isa: str) -> Values:
    config = ExecutorConfig(threads=1, isa=isa, numerics="exact")  # type: ignore[arg-type]
    executor = Rig(model=model, executor=config, num_blocks=4).make_executor()
    found = logits(executor, ([1, 30, 7, 12], 0, [[0]]))[0]
    executor.close()
    return found


@pytest.mark.parametrize("isa", EVERY_ISA)
def test_rule_4_gelu_has_no_tail_of_its_own(isa: str) -> None:
    """One feed-forward unit of 35, in each place where it can stand: the last three fill no vector."""
    model = tiny_model(WeightFormat.F32, **ONE_LAYER, intermediate_size=35)
    found = [one_row(rolled(model, shift, 0, "gate_proj", "up_proj", only=32), isa) for shift in range(35)]
    assert all(same(found[0], other) for other in found[1:])
    # The unit matters: with another one the answer is another.
    assert not np.array_equal(found[0], one_row(rolled(model, 0, 0, only=31), isa))


@pytest.mark.parametrize("isa", EVERY_ISA)
@pytest.mark.parametrize("cap", [0.9, 7.0])
def test_rule_4_a_soft_cap_has_no_tail_of_its_own(cap: float, isa: str) -> None:
    """A vocabulary of 35, its logits in rolled order."""
    fields = {**ONE_LAYER, "vocab_size": 35, "final_logit_softcapping": cap, "tie_word_embeddings": False}
    model = tiny_model(WeightFormat.F32, **fields)
    found = [np.roll(one_row(rolled(model, shift, 0, "lm_head"), isa), -shift, axis=1) for shift in range(35)]
    assert np.abs(found[0]).max() > cap / 4
    assert all(same(found[0], other) for other in found[1:])


@pytest.mark.parametrize("isa", EVERY_ISA)
def test_rule_4_a_norm_of_a_head_does_not_depend_on_the_head(isa: str) -> None:
    """Query and KV heads rolled all together, of a size that fills no vector: each head's output stays the same."""
    model = tiny_model(WeightFormat.F32, **ONE_LAYER, head_dim=12, num_key_value_heads=6, hidden_size=52)

    name = "model.layers.0.self_attn.o_proj.weight"
    output = model.weights[name].data.view("<f4").reshape(model.weights[name].shape) * (np.arange(72) == 11)

    def heads(shift: int) -> TinyModel:
        """Rolled by whole heads; the output projection reads the last value of one head, wherever that is."""
        moved = rolled(model, 12 * shift, 0, "q_proj", "k_proj", "v_proj")
        weight = encode(name, np.roll(output, 12 * shift, axis=1).astype(np.float32), WeightFormat.F32)
        return TinyModel(graph=model.graph, weights={**moved.weights, name: weight})

    found = [one_row(heads(shift), isa) for shift in range(6)]
    assert all(same(found[0], other) for other in found[1:])


@pytest.mark.parametrize("isa", EVERY_ISA)
@pytest.mark.parametrize("format_", [WeightFormat.Q4_0, WeightFormat.Q8_0])
def test_rule_5_activations_are_rounded_per_token(format_: WeightFormat, isa: str) -> None:
    """Neighbours leave a row alone, wherever in a panel of rows it stands: norms and gates round as they write."""
    config = ExecutorConfig(threads=1, isa=isa)  # type: ignore[arg-type]
    executor = Rig(model=tiny_model(format_, **GEMMA), executor=config).make_executor()
    tokens = prompt(6)
    alone = logits(executor, (tokens, 0, [[0], [1]]))[0]
    for count in (1, 2, 3, 15):
        rows = [(prompt(5, seed=9 + i), 0, [[1 + i], [2 + i]]) for i in range(count)]
        assert same(alone, logits(executor, *rows, (tokens, 0, [[40], [41]]))[-1])
        assert same(alone, logits(executor, (tokens, 0, [[41], [40]]), *rows)[0])
    executor.close()

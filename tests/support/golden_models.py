"""Tiny checkpoints with golden values of transformers: loading and running them, and planting mistakes in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tidemill.core.config import ExecutorConfig, ModelConfig
from tidemill.core.step import NO_BLOCK, PlanRow, RowOptions, SequenceId, StepPlan
from tidemill.executors.factory import make_executor
from tidemill.executors.protocol import Executor, KvPoolSpec
from tidemill.graph.formats import WeightFormat, WeightTensor, dequantize
from tidemill.graph.graph import Graph, Node, Rope, RopeSpec
from tidemill.graph.lora import Adapter, AdapterNumber
from tidemill.models.loading import load_model
from tidemill.models.loading.stored import StoredWeights
from tidemill.models.model import Model

__all__ = [
    "BLOCK_SIZE",
    "DATA",
    "EXECUTORS",
    "TOLERANCE",
    "VISIBLE",
    "Floats",
    "Golden",
    "all_logits",
    "as_f32",
    "assert_shows",
    "default_frequencies",
    "executor_for",
    "goldens",
    "greedy",
    "load",
    "no_biases",
    "row",
    "with_nodes",
    "with_pairs_left",
    "with_ropes",
    "with_weight",
]

DATA = Path(__file__).parent.parent / "golden" / "data"
EXECUTORS = ("native", "reference")
TOLERANCE = 1e-4
VISIBLE = 1e-2
"""A planted mistake must move some logit by at least this much, a hundred times the tolerance."""
BLOCK_SIZE = 16
NUM_BLOCKS = 16

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Golden:
    """What transformers computed for one prompt."""

    prompt: list[int]
    logits: Floats
    greedy: list[int]


def load(case: str, file: str = "", **config: int) -> Model:
    """A checkpoint's folder, or a file of it."""
    return load_model(ModelConfig(path=str(DATA / case / file), **config))  # type: ignore[arg-type]


def goldens(case: str, weights: str = "f16") -> list[Golden]:
    """The prompts of a checkpoint; ``weights``: the precision of its weights that the values are of."""
    expected = np.load(DATA / case / "expected.npz")
    count = sum(key.startswith("prompt") for key in expected)
    return [
        Golden(
            prompt=expected[f"prompt{i}"].tolist(),
            logits=expected[f"{weights}_logits{i}"],
            greedy=expected[f"{weights}_greedy{i}"].tolist(),
        )
        for i in range(count)
    ]


def executor_for(
    name: str,
    graph: Graph,
    weights: Mapping[str, WeightTensor],
    num_blocks: int = NUM_BLOCKS,
    adapters: Sequence[Adapter] = (),
) -> Executor:
    """An executor in exact numerics with its KV allocated; its adapters are 1, 2, ..."""
    config = ExecutorConfig(executor="native" if name == "native" else "reference", numerics="exact", threads=1)
    executor = make_executor(graph, weights, config, adapters=bool(adapters))
    for index, adapter in enumerate(adapters):
        executor.add_adapter(AdapterNumber(index + 1), adapter)
    executor.allocate_kv(
        [KvPoolSpec(group=group.name, num_blocks=num_blocks, block_size=BLOCK_SIZE) for group in graph.kv_groups]
    )
    return executor


def row(
    graph: Graph,
    tokens: Sequence[int],
    *,
    start: int = 0,
    outputs: int = 1,
    num_blocks: int = NUM_BLOCKS,
    adapter: int = 0,
) -> PlanRow:
    """One sequence's share of a step. Positions do not lie in the order of the blocks, and blocks that a window has
    passed are given back."""

    def table(window: int | None) -> list[int]:
        passed = 0 if window is None else max(0, start - window + 1) // BLOCK_SIZE
        return [NO_BLOCK if block < passed else num_blocks - 1 - block for block in range(num_blocks)]

    return PlanRow(
        sequence=SequenceId(0),
        tokens=tokens,
        start=start,
        block_tables=tuple(table(group.window) for group in graph.kv_groups),
        num_outputs=outputs,
        options=RowOptions() if outputs else None,
        adapter=adapter,
    )


def all_logits(executor: Executor, graph: Graph, prompt: Sequence[int], *, adapter: int = 0) -> Floats:
    """Logits of every position of a prompt, in one step."""
    return executor.logits(StepPlan(step=0, rows=(row(graph, prompt, outputs=len(prompt), adapter=adapter),)))[0]


def greedy(
    executor: Executor, graph: Graph, prompt: Sequence[int], count: int, chunk: int, *, adapter: int = 0
) -> list[int]:
    """So many tokens: the prompt in chunks, then one token a step."""
    tokens, done, step = list(prompt), 0, 0
    while len(tokens) < len(prompt) + count:
        part = tokens[done : done + chunk]
        last = done + len(part) == len(tokens)
        one = row(graph, part, start=done, outputs=int(last), adapter=adapter)
        executor.submit(StepPlan(step=step, rows=(one,)))
        done, step = done + len(part), step + 1
        tokens += executor.collect().rows[0].tokens
    return tokens[len(prompt) :]


# --- mistakes -----------------------------------------------------------------------------------------------------


def assert_shows(model: Model, plant: Callable[[Model], Model], golden: Golden) -> None:
    """The model is right, and with the mistake it is visibly wrong."""
    right, wrong = (
        all_logits(executor_for("reference", each.graph, each.weights), each.graph, golden.prompt)
        for each in (model, plant(model))
    )
    assert np.abs(right - golden.logits).max() < TOLERANCE
    assert np.abs(wrong - golden.logits).max() > VISIBLE


def with_nodes(model: Model, change: Callable[[Node], Node]) -> Model:
    return replace(model, graph=replace(model.graph, nodes=tuple(change(node) for node in model.graph.nodes)))


def with_ropes(model: Model, change: Callable[[RopeSpec], RopeSpec]) -> Model:
    return with_nodes(model, lambda n: replace(n, rope=change(n.rope)) if isinstance(n, Rope) else n)


def with_weight(model: Model, part: str, change: Callable[[Floats], Floats]) -> Model:
    """Change the weights whose name has this part."""

    def changed(name: str) -> WeightTensor:
        tensor = model.weights[name]
        return as_f32(name, change(dequantize(tensor))) if part in name else tensor

    return replace(model, weights={name: changed(name) for name in model.weights})


def with_pairs_left(model: Model) -> Model:
    """Rows of queries and keys of a GGUF file in pairs, as they are stored."""
    assert isinstance(model.weights, StoredWeights)
    stored = {name: replace(tensor, heads=0) for name, tensor in model.weights.stored.items()}
    return replace(model, weights=StoredWeights(stored))


def as_f32(name: str, values: Floats) -> WeightTensor:
    data = np.ascontiguousarray(values, np.float32).view(np.uint8).reshape(-1)
    return WeightTensor(name=name, format=WeightFormat.F32, shape=values.shape, data=data)


def default_frequencies(theta: float) -> Callable[[RopeSpec], RopeSpec]:
    """The rope without scaling, for as many dimensions."""

    def change(spec: RopeSpec) -> RopeSpec:
        half = len(spec.inv_freq)
        return replace(spec, inv_freq=tuple(theta ** (-i / half) for i in range(half)))

    return change


def no_biases(model: Model) -> Model:
    return with_weight(model, ".bias", np.zeros_like)

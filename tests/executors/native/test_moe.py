"""Mixtures of experts: against a plain computation, token by token, and bit for bit however the rows fall together."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.executors.native.small_graphs import SmallGraph, executor_for, outputs_of
from tests.support.isas import EVERY_ISA
from tests.support.tiny import encode
from tidemill.core.config import ExecutorConfig
from tidemill.executors.native._native import Machine
from tidemill.executors.reference.batch import Batch
from tidemill.executors.reference.executor import ReferenceExecutor
from tidemill.graph.formats import WeightFormat, dequantize
from tidemill.graph.graph import ClampedGlu, Moe, Value

VOCAB = 64
Floats = npt.NDArray[np.float64]


class Mixture:
    """A graph that is one mixture; token t reads row t of ``x`` and of ``scores``."""

    def __init__(
        self, *, experts: int, width: int = VOCAB, inner: int = 64, stored_as: WeightFormat = WeightFormat.F32
    ) -> None:
        random = np.random.default_rng(experts + width + inner)
        self.experts, self.width, self.inner = experts, width, inner
        self.x = random.standard_normal((width, width)).astype(np.float32)
        self.scores = (2 * random.standard_normal((width, experts))).astype(np.float32)
        shapes = {"gate": (experts * inner, width), "up": (experts * inner, width), "down": (experts * width, inner)}
        self.weights = {
            name: encode(name, (random.standard_normal(shape) / np.sqrt(shape[1])).astype(np.float32), stored_as)
            for name, shape in shapes.items()
        }
        self.biases = {name: random.standard_normal(shape[0]).astype(np.float32) for name, shape in shapes.items()}

    def of(self, name: str) -> Floats:
        """A stacked weight by expert."""
        values = dequantize(self.weights[name]).astype(np.float64)
        return values.reshape(self.experts, -1, values.shape[1])

    def graph(self, *, biased: bool = False, **options: Any) -> tuple[SmallGraph, Value]:
        small = SmallGraph()
        x, scores = small.embed("x", self.x), small.embed("scores", self.scores)
        gate, up, down = (small.tensor(self.weights[name]) for name in ("gate", "up", "down"))
        values = {"top_k": 2, "normalized": True, "activation": "silu"} | options
        if biased:
            values["biases"] = tuple(small.weight(f"{name}.bias", self.biases[name]) for name in ("gate", "up", "down"))
        out = small.add(
            self.width,
            lambda o: Moe(x=x, scores=scores, gate=gate, up=up, down=down, inner=self.inner, out=o, **values),
        )
        return small, out

    def run(self, tokens: list[int], config: ExecutorConfig | None = None, variant: int = 0, **options: Any) -> Any:
        small, out = self.graph(**options)
        config = config or ExecutorConfig(threads=2, numerics="exact")
        executor = executor_for(small, out, config=config, force_row_variant=variant)
        rows = outputs_of(executor, tokens)
        executor.close()
        return rows

    def expected(self, token: int, *, top_k: int, normalized: bool, scale: float) -> Floats:
        """One token, in the words of the definition."""
        scores = self.scores[token].astype(np.float64)
        shares = np.exp(scores) / np.exp(scores).sum()
        chosen = sorted(sorted(range(self.experts), key=lambda e: (-scores[e], e))[:top_k])
        total = sum(shares[e] for e in chosen) if normalized else 1.0
        out = np.zeros(self.width)
        for e in chosen:
            gate, up = self.of("gate")[e] @ self.x[token], self.of("up")[e] @ self.x[token]
            out += scale * shares[e] / total * (self.of("down")[e] @ (gate / (1 + np.exp(-gate)) * up))
        return out


@pytest.mark.parametrize("isa", EVERY_ISA)
@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("tokens", [1, 7, 33])
@pytest.mark.parametrize("sizes", [(1, 1, 33, 7), (4, 2, 64, 35), (8, 3, 100, 64), (5, 5, 16, 16), (60, 4, 20, 17)])
def test_each_token_is_the_sum_of_its_experts(
    sizes: tuple[int, int, int, int], tokens: int, normalized: bool, isa: str
) -> None:
    """``sizes``: experts, how many a token chooses, width, width of an expert."""
    experts, top_k, width, inner = sizes
    mixture = Mixture(experts=experts, width=width, inner=inner)
    options: dict[str, Any] = {"top_k": top_k, "normalized": normalized, "scale": 1.5}
    config = ExecutorConfig(threads=2, numerics="exact", isa=isa)  # type: ignore[arg-type]
    ids = np.random.default_rng(tokens).integers(0, width, tokens).tolist()
    expected = [mixture.expected(token, **options) for token in ids]
    np.testing.assert_allclose(mixture.run(ids, config, **options), expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("isa", EVERY_ISA)
@pytest.mark.parametrize("tokens", [1, 7, 33])
@pytest.mark.parametrize("sizes", [(1, 1, 33, 7), (4, 2, 64, 35), (8, 3, 100, 64), (5, 5, 16, 16)])
def test_biases_and_clamped_gates(sizes: tuple[int, int, int, int], tokens: int, isa: str) -> None:
    """A third of the gates and of the other half are beyond the limit."""
    experts, top_k, width, inner = sizes
    mixture = Mixture(experts=experts, width=width, inner=inner)
    mixture.scores[0, 0] = 90.0
    by = ClampedGlu(alpha=1.702, limit=1.0)
    config = ExecutorConfig(threads=2, numerics="exact", isa=isa)  # type: ignore[arg-type]
    ids = np.random.default_rng(tokens).integers(0, width, tokens).tolist()
    found = mixture.run(ids, config, top_k=top_k, activation=by, biased=True)
    bias = {name: values.reshape(experts, -1).astype(np.float64) for name, values in mixture.biases.items()}
    for row, token in zip(found, ids, strict=True):
        scores, x = mixture.scores[token].astype(np.float64), mixture.x[token]
        chosen = sorted(range(experts), key=lambda e: (-scores[e], e))[:top_k]
        total = sum(np.exp(scores[e] - scores.max()) for e in chosen)
        expected = np.zeros(width)
        for e in chosen:
            gate = np.minimum(mixture.of("gate")[e] @ x + bias["gate"][e], 1.0)
            up = np.clip(mixture.of("up")[e] @ x + bias["up"][e], -1.0, 1.0)
            gated = gate / (1 + np.exp(-1.702 * gate)) * (up + 1)
            expected += np.exp(scores[e] - scores.max()) / total * (mixture.of("down")[e] @ gated + bias["down"][e])
        np.testing.assert_allclose(row, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("isa", EVERY_ISA)
@pytest.mark.parametrize("stored_as", [format_ for format_ in WeightFormat if format_.quantized])
def test_quantised_experts_are_the_references(stored_as: WeightFormat, isa: str) -> None:
    """In the fast mode: inputs and gated products rounded to 8 bits, in native rows grouped by expert.

    A float that differs in its last place may round to the next of 127 steps, so single values may be a step off.
    """
    mixture = Mixture(experts=5, width=256, inner=256, stored_as=stored_as)
    small, out = mixture.graph(activation="gelu_tanh")
    tokens = list(range(VOCAB))
    graph = small.graph(out)
    reference = ReferenceExecutor(graph, small.weights, numerics="fast")
    config = ExecutorConfig(threads=2, numerics="fast", isa=isa)  # type: ignore[arg-type]
    native = mixture.run(tokens, config, activation="gelu_tanh")
    exact = mixture.run(tokens, ExecutorConfig(threads=2, numerics="exact", isa=isa), activation="gelu_tanh")  # type: ignore[arg-type]
    expected = reference_rows(reference, tokens)
    close = np.abs(native - expected) / np.abs(expected).max()
    assert np.median(close) < 1e-6
    assert close.max() < 5e-3
    assert np.median(np.abs(exact - expected) / np.abs(expected).max()) > 1e-5


def reference_rows(executor: ReferenceExecutor, tokens: list[int]) -> Any:
    """The reference wants KV, which this graph has none of: its values are computed without a step."""
    ids = np.asarray(tokens)
    return executor._run(Batch(tokens=ids, positions=ids, selected=ids, spans=()))


@pytest.mark.parametrize("isa", EVERY_ISA)
@pytest.mark.parametrize("numerics", ["fast", "exact"])
@pytest.mark.parametrize("stored_as", [WeightFormat.F32, WeightFormat.BF16, WeightFormat.Q4_1, WeightFormat.Q8_0])
def test_a_rows_bits_do_not_depend_on_who_shares_its_experts(stored_as: WeightFormat, numerics: str, isa: str) -> None:
    """All 64 tokens at once, each alone, and one of them 40 times, with every row-count variant."""
    mixture = Mixture(experts=7, stored_as=stored_as)

    def run(tokens: list[int], threads: int = 1, variant: int = 0) -> Any:
        config = ExecutorConfig(threads=threads, numerics=numerics, isa=isa)  # type: ignore[arg-type]
        return mixture.run(tokens, config, variant, top_k=3)

    together = run(list(range(VOCAB)), threads=2)
    assert len(np.unique(together, axis=0)) == VOCAB
    for token in (0, 5, 17, 63):
        assert run([token]).tobytes() == together[token].tobytes()
        assert run([token] * 40, threads=2).tobytes() == together[token].tobytes() * 40
    for variant in (1, 2, 3, 4):
        assert run(list(range(VOCAB)), variant=variant).tobytes() == together.tobytes()


def only(mixture: Mixture, experts: list[int]) -> None:
    """Let the other experts say nothing."""
    down = mixture.of("down")
    for expert in set(range(mixture.experts)) - set(experts):
        down[expert] = 0.0
    mixture.weights["down"] = encode("down", down.reshape(-1, mixture.inner).astype(np.float32), WeightFormat.F32)


@pytest.mark.parametrize("isa", EVERY_ISA)
@pytest.mark.parametrize("experts", [2, 7, 9, 64])
def test_of_equal_scores_the_lower_numbers_are_chosen(experts: int, isa: str) -> None:
    """All scores equal but the last but one's, which is higher: it is chosen, and then expert 0."""
    config = ExecutorConfig(threads=1, numerics="exact", isa=isa)  # type: ignore[arg-type]

    def outputs(heard: list[int]) -> Any:
        mixture = Mixture(experts=experts)
        mixture.scores[:] = 0.5
        mixture.scores[:, -2] = 0.75
        only(mixture, heard)
        return mixture.run([3, 4], config, top_k=2)

    chosen = sorted({0, experts - 2} if experts > 2 else {0, 1})
    assert outputs(list(range(experts))).tobytes() == outputs(chosen).tobytes()
    assert all(np.any(outputs([expert])) for expert in chosen)
    assert not np.any(outputs([expert for expert in range(experts) if expert not in chosen]))


@pytest.mark.parametrize("isa", EVERY_ISA)
def test_experts_are_added_in_the_order_of_their_numbers(isa: str) -> None:
    """Each expert's own part is what comes out when the others say nothing; summed in float32 from the first to the
    last they are the whole, bit for bit, though the best expert is another one in most rows. Backwards they are not."""
    config = ExecutorConfig(threads=1, numerics="exact", isa=isa)  # type: ignore[arg-type]
    tokens = list(range(VOCAB))
    parts = []
    for expert in range(4):
        mixture = Mixture(experts=4)
        only(mixture, [expert])
        parts.append(mixture.run(tokens, config, top_k=4))
    whole = Mixture(experts=4).run(tokens, config, top_k=4)
    a, b, c, d = parts
    assert np.array_equal(((a + b) + c) + d, whole)
    assert not np.array_equal(((d + c) + b) + a, whole)


@pytest.mark.parametrize("isa", EVERY_ISA)
def test_a_broken_row_breaks_no_other(isa: str) -> None:
    """NaN scores choose some experts, and only that row is NaN."""
    config = ExecutorConfig(threads=1, numerics="exact", isa=isa)  # type: ignore[arg-type]
    mixture = Mixture(experts=5)
    whole = mixture.run([1, 2, 3], config)
    mixture.scores[2] = np.nan
    broken = mixture.run([1, 2, 3], config)
    assert np.isnan(broken[1]).all()
    assert broken[[0, 2]].tobytes() == whole[[0, 2]].tobytes()


def test_scratch_is_part_of_the_workspace() -> None:
    """Per token and chosen expert a row of 64 floats and gate and up of 112 (100 padded); the two inputs and the
    output take 64, 16 (5 padded) and 64."""
    small, out = Mixture(experts=5, width=64, inner=100).graph(top_k=3)
    executor = executor_for(small, out, config=ExecutorConfig(threads=1, numerics="exact"))
    with_logits = 4 * (3 * (64 + 2 * 112) + 64 + 16 + 64)
    assert executor._machine.workspace_bytes(10, 0) == 10 * with_logits
    executor.close()


def test_a_choice_of_more_experts_than_there_are_is_refused() -> None:
    machine = Machine("portable", 1, False, 0)
    with pytest.raises(ValueError, match="a row cannot choose that many experts"):
        machine.moe(0, 1, 8, 8, 2, 3, True, 0, 0.0, 0.0, 1.0, [(0, 0, -1)] * 3, 2, -1, 3, -1, 4)
    with pytest.raises(ValueError, match="no activation has the number 3"):
        machine.moe(0, 1, 8, 8, 2, 2, True, 3, 0.0, 0.0, 1.0, [(0, 0, -1)] * 3, 2, -1, 3, -1, 4)
    with pytest.raises(ValueError, match="no such number of experts"):
        machine.add_matrices(np.zeros(8, np.uint8), 0, 0, 1, 2, False)
    machine.close()

"""Mixture of experts in float64: what graph.py says of ``Moe``, one expert after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from tidemill.executors.reference.linear import Floats, Matrix
from tidemill.executors.reference.operations import ACTIVATIONS, clamped_glu
from tidemill.graph.formats import WeightTensor
from tidemill.graph.graph import ClampedGlu, Moe

__all__ = ["Experts", "chosen"]


class Experts:
    """The experts of one ``Moe`` node, ready for rows."""

    def __init__(
        self,
        node: Moe,
        weights: tuple[WeightTensor, WeightTensor, WeightTensor],
        biases: Sequence[Floats],
        numerics: Literal["fast", "exact"],
    ) -> None:
        """``weights`` and ``biases`` (if there are any): of gate, up and down, stacked."""
        self._node = node
        parts = (_unstacked(weight, node.experts, numerics) for weight in weights)
        self._experts = tuple(zip(*parts, strict=True))
        none = [np.zeros(node.experts)] * 3
        self._biases = tuple(zip(*(bias.reshape(node.experts, -1) for bias in biases or none), strict=True))

    def times(self, x: Floats, scores: Floats) -> Floats:
        """x [T, width], scores [T, experts] -> [T, width]"""
        node = self._node
        shares = _softmax(scores)
        picked = chosen(scores, node.top_k)
        if node.normalized:
            shares = shares / np.sum(shares, axis=1, where=picked, keepdims=True)
        out = np.zeros_like(x)
        for expert, (gate, up, down) in enumerate(self._experts):
            rows = np.flatnonzero(picked[:, expert])
            gate_bias, up_bias, down_bias = self._biases[expert]
            gated = self._gated(gate.times(x[rows]) + gate_bias, up.times(x[rows]) + up_bias)
            out[rows] += node.scale * shares[rows, expert, None] * (down.times(gated) + down_bias)
        return out

    def _gated(self, gate: Floats, up: Floats) -> Floats:
        activation = self._node.activation
        if isinstance(activation, ClampedGlu):
            return clamped_glu(gate, up, activation)
        return ACTIVATIONS[activation](gate) * up


def chosen(scores: Floats, top_k: int) -> npt.NDArray[np.bool_]:
    """Which experts each row goes through: those with the highest scores, of equal ones the first. [T, experts]"""
    order = np.argsort(-scores, axis=1, kind="stable")
    picked = np.zeros(scores.shape, dtype=bool)
    np.put_along_axis(picked, order[:, :top_k], True, axis=1)
    return picked


def _softmax(scores: Floats) -> Floats:
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    result: Floats = weights / weights.sum(axis=1, keepdims=True)
    return result


def _unstacked(weight: WeightTensor, experts: int, numerics: Literal["fast", "exact"]) -> list[Matrix]:
    rows, columns = weight.shape[0] // experts, weight.shape[1]
    return [
        Matrix(WeightTensor(name=weight.name, format=weight.format, shape=(rows, columns), data=data), numerics)
        for data in np.split(weight.data, experts)
    ]

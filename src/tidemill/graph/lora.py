"""Low-rank adapters of a graph's linear layers (Hu et al., LoRA, arXiv:2106.09685).

    y = W x (+ bias) (+ residual) + B (scale * (A x))        A [rank, inputs], B [outputs, rank]

x is the layer's input before any rounding, and W stays as it is: rows with other adapters, or none, are in the same
step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NewType

import numpy as np
import numpy.typing as npt

from tidemill.graph.graph import Graph, Linear, TensorSpec

__all__ = ["Adapter", "AdapterNumber", "LowRankDelta", "adapter_targets", "full_adapter_bytes"]

AdapterNumber = NewType("AdapterNumber", int)
"""What the rows of a plan call an adapter that an executor has; 0 stands for none. No number is used again."""

_FLOAT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRankDelta:
    """What an adapter adds to the products of one weight."""

    a: npt.NDArray[np.float32]
    """[rank, inputs]"""
    b: npt.NDArray[np.float32]
    """[outputs, rank]"""
    scale: float

    @property
    def rank(self) -> int:
        """Width of the inner values."""
        return len(self.a)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """A set of them, by the names of the graph's weights."""

    deltas: Mapping[str, LowRankDelta]

    @property
    def rank(self) -> int:
        """The largest rank among them."""
        return max(delta.rank for delta in self.deltas.values())

    @property
    def nbytes(self) -> int:
        """Bytes of all of them, in float32."""
        return sum(delta.a.nbytes + delta.b.nbytes for delta in self.deltas.values())


def adapter_targets(graph: Graph) -> dict[str, TensorSpec]:
    """The weights that an adapter can change, by the names that linear layers know them by: all of them. Experts and
    embeddings are no linear layers."""
    names = (name for node in graph.nodes if isinstance(node, Linear) for name in node.weights)
    return {name: graph.spec(name) for name in names}


def full_adapter_bytes(graph: Graph, rank: int) -> int:
    """Bytes of an adapter of this rank that changes every weight it can."""
    return _FLOAT * rank * sum(sum(spec.shape) for spec in adapter_targets(graph).values())

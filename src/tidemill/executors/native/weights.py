"""Weights on their way into the native machine: each tensor once, in the form its readers need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from tidemill.core.errors import ModelLoadError
from tidemill.executors.native.packed_cache import PackItem
from tidemill.executors.native.pages import release_origin
from tidemill.graph.formats import WeightFormat, WeightTensor, dequantize
from tidemill.graph.graph import Graph, Linear, Moe, RopeSpec
from tidemill.graph.weight_source import WeightSource

if TYPE_CHECKING:
    from tidemill.executors.native._native import Machine

__all__ = ["WeightStore", "packed_bytes"]

# Numbers shared with csrc/kernels/linear.h, FileFormat.
_FILE_FORMAT = {
    WeightFormat.F32: 0,
    WeightFormat.F16: 1,
    WeightFormat.BF16: 2,
    WeightFormat.Q4_0: 3,
    WeightFormat.Q4_1: 4,
    WeightFormat.Q8_0: 5,
    WeightFormat.Q4_K: 6,
    WeightFormat.Q6_K: 7,
    WeightFormat.Q5_K: 8,
    WeightFormat.Q5_0: 9,
    WeightFormat.Q5_1: 10,
    WeightFormat.Q3_K: 11,
    WeightFormat.Q2_K: 12,
    WeightFormat.IQ4_NL: 13,
    WeightFormat.MXFP4: 14,
    WeightFormat.Q4_Z: 15,
    WeightFormat.F8_E4M3: 16,
}


def packed_bytes(graph: Graph, formats: Mapping[str, WeightFormat]) -> int:
    """Bytes that a graph's weights take once they are loaded: packed matrices, and vectors in float32.

    An embedding is read from its file, whose pages the system can drop: it counts only where it is an output head too.
    """
    from tidemill.executors.native._native import Machine

    counts: dict[str, int] = {}
    for node in graph.nodes:
        if isinstance(node, Linear):
            counts |= dict.fromkeys((graph.aliases.get(name, name) for name in node.weights), 1)
        elif isinstance(node, Moe):
            counts |= dict.fromkeys(
                (graph.aliases.get(name, name) for name in (node.gate, node.up, node.down)), node.experts
            )
    total = 0
    for name, count in counts.items():
        n, k = graph.spec(name).shape
        total += Machine.packed_bytes_of(_FILE_FORMAT[formats[name]], count, n // count, k)
    return total + sum(4 * spec.shape[0] for spec in graph.weights if len(spec.shape) == 1)


class WeightStore:
    """Gives weights their indices in the machine; a second name of a tensor gets the same index.

    Vectors and tables are handed over at once. Matrices are planned: ``planned`` lists them in the order of their
    indices, and whoever has the whole list hands them over.
    """

    def __init__(self, machine: Machine, graph: Graph, weights: Mapping[str, WeightTensor]) -> None:
        self._machine = machine
        self._graph = graph
        self._weights = weights
        self._matrices: dict[str, PackItem] = {}
        self._num_matrices = 0
        self._vectors: dict[str, int] = {}
        self._tables: dict[str, int] = {}
        self._ropes: dict[RopeSpec, int] = {}
        self.targets: dict[str, int] = {}
        """Weights that adapters may change; a second name of a tensor is a target of its own."""
        self._formats: dict[str, WeightFormat] = {}

    def quantized(self, name: str) -> bool:
        """Whether a weight is stored in blocks."""
        return self._format(self._canonical(name)).quantized

    def _format(self, name: str) -> WeightFormat:
        if name not in self._formats:
            source = self._weights
            if isinstance(source, WeightSource) and name in source:
                self._formats[name] = source.format_of(name)
            else:
                self._formats[name] = self._tensor(name, 2).format
        return self._formats[name]

    def outputs(self, name: str) -> int:
        """Outputs of a linear layer's weight."""
        return self._graph.spec(name).shape[0]

    def matrix(self, name: str) -> int:
        """The packed matrix of a linear layer's weight."""
        return self.experts(name, 1)

    def experts(self, name: str, count: int) -> int:
        """The packed matrix of the first of ``count`` stacked experts; the others follow."""
        name = self._canonical(name)
        if name not in self._matrices:
            self._matrices[name] = self._planned(name, count)
            self._num_matrices += count
        return self._matrices[name].index

    @property
    def planned(self) -> tuple[PackItem, ...]:
        """All matrices that were asked for so far."""
        return tuple(self._matrices.values())

    def vector(self, name: str) -> int:
        """A norm weight or a bias, in float32."""
        name = self._canonical(name)
        if name not in self._vectors:
            values = np.ascontiguousarray(dequantize(self._tensor(name, 1)), dtype=np.float32)
            self._vectors[name] = self._machine.add_vector(values)
            release_origin(self._weights, name)
        return self._vectors[name]

    def target(self, name: str) -> int:
        """What adapters know a linear layer's weight by."""
        if name not in self.targets:
            outputs, inputs = self._graph.spec(name).shape
            self.targets[name] = self._machine.add_target(inputs, outputs)
        return self.targets[name]

    def table(self, name: str) -> int:
        """A matrix whose rows are read one at a time from the stored bytes."""
        name = self._canonical(name)
        if name not in self._tables:
            tensor = self._tensor(name, 2)
            rows, columns = tensor.shape
            self._tables[name] = self._machine.add_table(tensor.data, _FILE_FORMAT[tensor.format], rows, columns)
        return self._tables[name]

    def rope(self, spec: RopeSpec) -> int:
        """The table of angles of a rope."""
        if spec not in self._ropes:
            self._ropes[spec] = self._machine.add_rope(list(spec.inv_freq), spec.attention_factor)
        return self._ropes[spec]

    def _planned(self, name: str, count: int) -> PackItem:
        n, k = self._graph.spec(name).shape
        number = _FILE_FORMAT[self._format(name)]
        size = self._machine.packed_bytes_of(number, count, n // count, k)
        return PackItem(name=name, index=self._num_matrices, format=number, count=count, n=n // count, k=k, size=size)

    def _canonical(self, name: str) -> str:
        return self._graph.aliases.get(name, name)

    def _tensor(self, name: str, dimensions: int) -> WeightTensor:
        tensor = self._weights.get(name)
        if tensor is None:
            raise ModelLoadError(f"weight {name} is missing")
        shape = self._graph.spec(name).shape
        if tensor.shape != shape or len(shape) != dimensions:
            raise ModelLoadError(f"weight {name} has shape {tensor.shape}, expected {shape}")
        return tensor

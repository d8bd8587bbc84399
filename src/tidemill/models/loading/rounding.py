"""``quantize``: weights in float formats, rounded to blocks when they are asked for.

    w4    q4_1: 4 bits with scale and minimum per 32, 5 bits a weight; what draws the tokens, and embeddings, as in w8
    w8    q8_0: 8 bits with scale per 32, 8.5 bits a weight

A 4-bit output head alone moves the answers many times as far as everything else does. Vectors, routers of experts and
matrices whose rows are not whole blocks stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Literal

import numpy as np

from tidemill.core.errors import ConfigError, ModelLoadError
from tidemill.core.machine import usable_cpus
from tidemill.executors.native._native import round_rows
from tidemill.graph.formats import WeightFormat, WeightTensor
from tidemill.graph.graph import Embed, Graph, Linear, Moe, Rows
from tidemill.graph.weight_source import WeightOrigin, formats_of
from tidemill.models.loading.stored import StoredWeights

__all__ = ["RoundedWeights", "Scheme", "rounded_formats"]

Scheme = Literal["w4", "w8"]
_VERSION = 1
"""Of the search for scales: kept copies of packed weights were made with one."""
_FLOATS = {WeightFormat.F32: 0, WeightFormat.F16: 1, WeightFormat.BF16: 2}
_BLOCKS = {WeightFormat.Q4_1: 4, WeightFormat.Q8_0: 5}
"""Numbers shared with csrc/kernels/linear.h, FileFormat."""


def rounded_formats(
    graph: Graph, formats: Mapping[str, WeightFormat], scheme: Scheme, where: str
) -> dict[str, WeightFormat]:
    """The format of each weight after rounding. Raises ConfigError naming a weight that is quantised already."""
    for name, format_ in formats.items():
        if format_ not in _FLOATS:
            raise ConfigError(
                f"quantize is {scheme}, and {where} is quantised already: {name} is {format_}; leave quantize out",
                param="quantize",
            )
    body = WeightFormat.Q4_1 if scheme == "w4" else WeightFormat.Q8_0
    routers = {node.scores.id for node in graph.nodes if isinstance(node, Moe)}
    wanted: dict[str, WeightFormat] = {}
    for node in graph.nodes:
        if isinstance(node, Moe):
            wanted |= dict.fromkeys((node.gate, node.up, node.down), body)
        elif isinstance(node, Linear) and node.out.id not in routers:
            eight = node.out.rows is Rows.OUTPUTS
            wanted |= dict.fromkeys(node.weights, WeightFormat.Q8_0 if eight else body)
    wanted |= dict.fromkeys(_tables(graph), WeightFormat.Q8_0)
    rounded = dict(formats)
    for name, format_ in wanted.items():
        real = graph.aliases.get(name, name)
        if graph.spec(name).shape[-1] % format_.block_values == 0:
            rounded[real] = WeightFormat.Q8_0 if WeightFormat.Q8_0 in (format_, wanted.get(real)) else format_
    return rounded


class RoundedWeights(StoredWeights):
    """Weights of a checkpoint in float formats, rounded one by one as they are asked for."""

    def __init__(self, graph: Graph, weights: StoredWeights, scheme: Scheme, where: str) -> None:
        super().__init__(weights.stored)
        self.unrounded = weights
        self.scheme = scheme
        self._formats = rounded_formats(graph, formats_of(weights, weights.stored), scheme, where)
        # The machine reads embeddings from the bytes it is given, so a second copy of them is no gain.
        self._tables = _tables(graph)
        self._kept: dict[str, WeightTensor] = {}

    def format_of(self, name: str) -> WeightFormat:
        return self._formats[name]

    def origin_of(self, name: str) -> WeightOrigin:
        origin = super().origin_of(name)
        if not self._is_rounded(name):
            return origin
        return replace(origin, recipe=f"{origin.recipe} rounded to {self._formats[name]}, search {_VERSION}")

    def __getitem__(self, name: str) -> WeightTensor:
        if name in self._kept:
            return self._kept[name]
        tensor = super().__getitem__(name)
        if not self._is_rounded(name):
            return tensor
        tensor = _rounded(tensor, self._formats[name], self.stored[name].where)
        if name in self._tables:
            self._kept[name] = tensor
        return tensor

    def _is_rounded(self, name: str) -> bool:
        return self._formats[name] in _BLOCKS


def _tables(graph: Graph) -> set[str]:
    """Embeddings of tokens."""
    return {node.weight for node in graph.nodes if isinstance(node, Embed) and node.by == "token"}


def _rounded(tensor: WeightTensor, to: WeightFormat, where: str) -> WeightTensor:
    """By as many threads as there are processors; each takes rows of its own."""
    rows, columns = tensor.rows, tensor.shape[-1]
    out = np.empty((len(rows), to.row_bytes(columns)), np.uint8)
    threads = min(usable_cpus(), len(rows))
    bounds = [len(rows) * i // threads for i in range(threads + 1)]
    source = np.ascontiguousarray(rows)

    def part(begin: int, end: int) -> bool:
        data, blocks = source[begin:end].reshape(-1), out[begin:end].reshape(-1)
        return round_rows(data, _FLOATS[tensor.format], columns, _BLOCKS[to], blocks)

    with ThreadPoolExecutor(threads) as pool:
        fine = list(pool.map(part, bounds[:-1], bounds[1:]))
    if not all(fine):
        raise ModelLoadError(f"{where}: tensor {tensor.name} has a value that is not finite, or too large to quantise")
    return WeightTensor(name=tensor.name, format=to, shape=tensor.shape, data=out.reshape(-1))

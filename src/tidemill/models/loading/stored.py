"""Tensors as files hold them, and their match with the weights a graph needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tidemill.core.errors import ModelLoadError
from tidemill.graph.formats import WeightFormat, WeightTensor, dequantize
from tidemill.graph.graph import Graph
from tidemill.graph.weight_source import WeightOrigin, WeightSource
from tidemill.models.loading.stored_rows import RowPart, StoredRows

__all__ = ["StoredTensor", "StoredWeights", "check_apart", "matched"]

_NAMES = {"name", "where"}
"""Fields that say what a tensor is called: they change nothing in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """One tensor of a file: its bytes are inside the file's map, its type may be one that no kernel reads."""

    name: str
    """As the file calls it."""
    where: str
    """The file it is in, for messages."""
    type_name: str
    format: WeightFormat | None
    """None: a type this build does not read."""
    shape: tuple[int, ...]
    """Rows first."""
    data: npt.NDArray[np.uint8]
    """Its bytes in the order of rows, or a view that has them in that order."""
    heads: int = 0
    """Above 0: rows are stored as rotation pairs within each of this many heads; ``weight`` puts them in halves."""
    offset: float = 0.0
    """Other than 0: ``weight`` adds it to every value, and gives float32."""
    more: tuple[StoredTensor, ...] = ()
    """Tensors with further rows; ``weight`` joins them."""
    rows: StoredRows | None = None
    """What makes the bytes of ``format``, where the file has them in another arrangement; ``data`` is empty then."""
    sources: tuple[npt.NDArray[np.uint8], ...] = ()
    """The bytes that ``rows`` reads."""

    def __str__(self) -> str:
        return f"{self.where}: tensor {self.name} {list(self.shape)} {self.type_name}"

    @property
    def stored_bytes(self) -> int:
        """What it takes in its files."""
        own = self.data.nbytes if self.rows is None else self.rows.nbytes
        return own + sum(tensor.stored_bytes for tensor in self.more)

    def readable_format(self) -> WeightFormat:
        """The format. Raises ModelLoadError if it is one that this build does not read."""
        if self.format is None:
            raise ModelLoadError(f"{self} has a type this build does not read; it reads {', '.join(WeightFormat)}")
        return WeightFormat.F32 if self.offset else self.format

    def split_rows(self, counts: Sequence[int]) -> tuple[StoredTensor, ...]:
        """Parts with so many rows each, one after the other. Raises ModelLoadError if that is not all of them."""
        if len(self.shape) != 2 or self.shape[0] != sum(counts):
            raise ModelLoadError(f"{self} has the wrong shape; expected {sum(counts)} rows")
        row = self.readable_format().row_bytes(self.shape[1])
        parts, begin = [], 0
        for count in counts:
            part = replace(self, shape=(count, self.shape[1]))
            if self.rows is None:
                part = replace(part, data=self.data[begin * row : (begin + count) * row])
            else:
                part = replace(part, rows=RowPart(whole=self.rows, first=begin, count=count, of=self.shape[0]))
            parts.append(part)
            begin += count
        return tuple(parts)

    def origin(self) -> WeightOrigin:
        """Everything that decides what ``weight`` gives: every field but the names, arrays as pieces."""
        recipe: list[object] = []
        pieces: list[npt.NDArray[np.uint8]] = []
        for item in fields(self):
            if item.name in _NAMES:
                continue
            value = getattr(self, item.name)
            parts = value if isinstance(value, tuple) else (value,)
            arrays = [part for part in parts if isinstance(part, np.ndarray)]
            further = [part.origin() for part in parts if isinstance(part, StoredTensor)]
            said = [part.shape for part in arrays] + [origin.recipe for origin in further]
            recipe.append((item.name, said or value))
            pieces += arrays
            for origin in further:
                pieces += origin.pieces
        return WeightOrigin(recipe=repr(recipe), pieces=tuple(pieces))

    def content(self) -> npt.NDArray[np.uint8]:
        """The bytes of its own rows in its format."""
        if self.rows is None:
            return np.ascontiguousarray(self.data).reshape(-1)
        own = self.shape[0] - sum(tensor.shape[0] for tensor in self.more)
        return self.rows.read(0, own)

    def weight(self, name: str) -> WeightTensor:
        """The tensor under the graph's name, with rows in the graph's order."""
        self.readable_format()
        assert self.format is not None
        data = np.concatenate([part.content() for part in (self, *self.more)]) if self.more else self.content()
        tensor = WeightTensor(name=name, format=self.format, shape=self.shape, data=data)
        if self.offset:
            values = dequantize(tensor) + np.float32(self.offset)
            data = values.view(np.uint8).reshape(-1)
            return WeightTensor(name=name, format=WeightFormat.F32, shape=self.shape, data=data)
        return halves_from_pairs(tensor, self.heads) if self.heads else tensor


def halves_from_pairs(tensor: WeightTensor, heads: int) -> WeightTensor:
    """Undo the row order of llama.cpp's converter for q and k.

    There, output rows 2i and 2i + 1 of a head are rotated together; here it is rows i and i + head_dim / 2:

        file   head h:  a0 b0 a1 b1 a2 b2 ...      rows are whole blocks in every format,
        graph  head h:  a0 a1 a2 ... b0 b1 b2 ...  so moving their bytes changes no value
    """
    rows = tensor.rows if len(tensor.shape) == 2 else tensor.data.reshape(tensor.shape[0], -1)
    pairs = rows.reshape(heads, -1, 2, rows.shape[1])
    data = np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(-1)
    return WeightTensor(name=tensor.name, format=tensor.format, shape=tensor.shape, data=data)


class StoredWeights(WeightSource):
    """A graph's weights, made from stored tensors when asked for: nothing is copied or read before."""

    def __init__(self, stored: Mapping[str, StoredTensor]) -> None:
        self.stored = stored

    @property
    def label(self) -> str:
        return next((tensor.where for tensor in self.stored.values()), "")

    def format_of(self, name: str) -> WeightFormat:
        return self.stored[name].readable_format()

    def origin_of(self, name: str) -> WeightOrigin:
        return self.stored[name].origin()

    def __getitem__(self, name: str) -> WeightTensor:
        return self.stored[name].weight(name)

    def __contains__(self, name: object) -> bool:
        return name in self.stored  # a Mapping's own would make the weight

    def __iter__(self) -> Iterator[str]:
        return iter(self.stored)

    def __len__(self) -> int:
        return len(self.stored)


def check_apart(tensors: Sequence[StoredTensor]) -> None:
    """Raises ModelLoadError naming two tensors of one file that share bytes: an offset is damaged, and one of them
    would be read with the other's values."""
    placed = sorted(
        (tensor.data.__array_interface__["data"][0], tensor.data.size, index)
        for index, tensor in enumerate(tensors)
        if tensor.data.size
    )
    for (begin, size, one), (after, _, other) in pairwise(placed):
        if begin + size > after:
            raise ModelLoadError(f"{tensors[other]} overlaps tensor {tensors[one].name}: the file is damaged")


def matched(graph: Graph, stored: Mapping[str, StoredTensor], where: str) -> StoredWeights:
    """Exactly the graph's weights. Raises ModelLoadError naming the first tensor that is missing, of another shape or
    type than can be read, or there without a use: a model with a tensor left out answers nonsense fluently."""
    for spec in graph.weights:
        tensor = stored.get(spec.name)
        if tensor is None:
            raise ModelLoadError(f"{where}: tensor {spec.name} {list(spec.shape)} is missing")
        if tensor.shape != spec.shape:
            raise ModelLoadError(f"{tensor} has the wrong shape; expected {list(spec.shape)}")
        tensor.readable_format()
    needed = {spec.name for spec in graph.weights}
    for name, tensor in stored.items():
        if name not in needed and not _zero_bias(tensor):
            raise ModelLoadError(f"{tensor} is not part of this architecture: nothing would use it")
    return StoredWeights({spec.name: stored[spec.name] for spec in graph.weights})


def _zero_bias(tensor: StoredTensor) -> bool:
    """Some quantisers save a bias of zeros for layers that have none."""
    return tensor.name.endswith(".bias") and not tensor.data.any()

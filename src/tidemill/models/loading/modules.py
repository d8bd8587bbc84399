"""The packed tensors of one module of a checkpoint, with their types checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tidemill.core.errors import ModelLoadError
from tidemill.models.loading.stored import StoredTensor
from tidemill.models.loading.stored_rows import StoredRows

__all__ = ["Module", "modules_with"]

_SCALES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}


@dataclass(frozen=True, slots=True)
class Module:
    """Tensors whose names are ``<name>.<part>``."""

    name: str
    stored: dict[str, StoredTensor]
    """Of the whole checkpoint; what is taken goes from it."""
    taken: list[StoredTensor] = field(default_factory=list)

    def has(self, part: str) -> bool:
        """Whether there is such a tensor."""
        return f"{self.name}.{part}" in self.stored

    def take(self, part: str, dtype: str, dimensions: int) -> StoredTensor:
        """A tensor of a type. Raises ModelLoadError if it is missing or of another."""
        tensor = self._take(part)
        if tensor.type_name != dtype or len(tensor.shape) != dimensions:
            raise ModelLoadError(f"{tensor} should be {dtype} with {dimensions} dimensions")
        return tensor

    def words(self, part: str) -> npt.NDArray[np.uint32]:
        """A matrix of 32-bit words."""
        tensor = self.take(part, "I32", 2)
        words: npt.NDArray[np.uint32] = _numbers(tensor, "<u4")
        return words

    def integers(self, part: str, dtype: str) -> npt.NDArray[np.int64]:
        """A vector of I32 or I64."""
        tensor = self.take(part, dtype, 1)
        return _numbers(tensor, "<i4" if dtype == "I32" else "<i8").astype(np.int64)

    def scales(self, part: str) -> npt.NDArray[np.float32]:
        """Numbers of any float type, in float32, in the tensor's shape (a copy: scales are few)."""
        tensor = self._take(part)
        if tensor.type_name not in _SCALES:
            raise ModelLoadError(f"{tensor} should be one of {', '.join(_SCALES)}")
        values = _numbers(tensor, _SCALES[tensor.type_name])
        if tensor.type_name == "BF16":
            values = (values.astype(np.uint32) << 16).view(np.float32)
        floats: npt.NDArray[np.float32] = values.astype(np.float32)
        return floats

    def put(self, like: StoredTensor, type_name: str, shape: tuple[int, int], rows: StoredRows) -> None:
        """The module's weight, made of the tensors that were taken."""
        name = f"{self.name}.weight"
        if name in self.stored:
            raise ModelLoadError(f"{self.stored[name]} stands beside packed weights of the same module")
        self.stored[name] = StoredTensor(
            name=name,
            where=like.where,
            type_name=type_name,
            format=rows.format,
            shape=shape,
            data=np.empty(0, np.uint8),
            rows=rows,
            sources=tuple(tensor.data for tensor in self.taken),
        )

    def _take(self, part: str) -> StoredTensor:
        tensor = self.stored.pop(f"{self.name}.{part}", None)
        if tensor is None:
            raise ModelLoadError(f"tensor {self.name}.{part} is missing")
        self.taken.append(tensor)
        return tensor


def modules_with(stored: dict[str, StoredTensor], part: str) -> Iterator[Module]:
    """The modules that have such a tensor."""
    for name in [name for name in stored if name.endswith(f".{part}")]:
        yield Module(name.removesuffix(f".{part}"), stored)


def _numbers(tensor: StoredTensor, dtype: str) -> npt.NDArray[Any]:
    expected = int(np.prod(tensor.shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    if tensor.data.nbytes != expected:
        raise ModelLoadError(f"{tensor} has {tensor.data.nbytes} bytes, not {expected}")
    return tensor.data.view(dtype).reshape(tensor.shape)

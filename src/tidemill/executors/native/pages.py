"""Which bytes are pages of a file: those can be let go after use and read again."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tidemill.executors.native._native import let_go
from tidemill.graph.formats import WeightTensor
from tidemill.graph.weight_source import WeightSource

__all__ = ["in_file_map", "release", "release_origin"]

_AROUND = 2 * 2**20
"""A read of a few bytes maps its neighbours too: at most the largest piece in which the page cache holds a file."""


def in_file_map(array: npt.NDArray[Any]) -> bool:
    """True for a view of a read-only memory map."""
    return _map_of(array) is not None


def release(array: npt.NDArray[np.uint8]) -> None:
    """Take a view of a read-only map out of resident memory, with the gaps in it and what was mapped around it.

    Other arrays stay as they are.
    """
    whole = _map_of(array)
    if whole is None or not array.size:
        return
    spans = [(size - 1) * stride for size, stride in zip(array.shape, array.strides, strict=True)]
    first = array.ctypes.data + sum(span for span in spans if span < 0)
    end = first + sum(map(abs, spans)) + array.itemsize
    begin = np.frombuffer(whole, np.uint8).ctypes.data
    first, end = max(begin, first - _AROUND), min(begin + len(whole), end + _AROUND)
    let_go(first, end - first)


def release_origin(weights: Mapping[str, WeightTensor], name: str) -> None:
    """Take what a weight was made from out of resident memory."""
    if isinstance(weights, WeightSource):
        for piece in weights.origin_of(name).pieces:
            release(piece)


def _map_of(array: npt.NDArray[Any]) -> mmap.mmap | None:
    base: Any = array
    while isinstance(base, np.ndarray):
        if base.flags.writeable:
            return None
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    return base if isinstance(base, mmap.mmap) else None

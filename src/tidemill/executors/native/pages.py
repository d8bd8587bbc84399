"""Which bytes are pages of a file: those can be let go after use and read again."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

from tidemill.executors.native._native import let_go

__all__ = ["in_file_map", "release"]


def in_file_map(array: npt.NDArray[Any]) -> bool:
    """True for a view of a read-only memory map."""
    base: Any = array
    while isinstance(base, np.ndarray):
        if base.flags.writeable:
            return False
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    return isinstance(base, mmap.mmap)


def release(array: npt.NDArray[np.uint8]) -> None:
    """Take a view of a read-only map out of resident memory, the gaps in it too; other arrays stay as they are."""
    if array.size and in_file_map(array):
        spans = [(size - 1) * stride for size, stride in zip(array.shape, array.strides, strict=True)]
        first = array.ctypes.data + sum(span for span in spans if span < 0)
        let_go(first, sum(map(abs, spans)) + array.itemsize)

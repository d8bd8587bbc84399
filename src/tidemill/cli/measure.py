"""Two short measurements: how fast memory streams in, and how fast the processor multiplies and adds.

Both use numpy, which is always there. On a shared host two runs can differ by a third: read them as orders of
magnitude. Single-stream decoding cannot be faster than the weights' bytes over the first figure.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

__all__ = ["multiply_add_gflops", "read_gigabytes"]

_REPEATS = 3
_BUFFER = 256 * 2**20
"""Far above any cache this is likely to run on."""


def read_gigabytes(threads: int, *, memory: int) -> float:
    """Bytes per second that all threads together read from memory, in units of 10^9; the best of three passes.

    The buffer takes at most an eighth of the memory, at least a MiB.
    """
    size = max(min(_BUFFER, memory // 8), 2**20) // 4
    parts = np.array_split(np.empty(size, dtype=np.int32), threads)
    for part in parts:
        part.fill(1)  # untouched pages would all be the same page of zeros
    best = 0.0
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(_REPEATS):
            begin = time.perf_counter()
            list(pool.map(np.max, parts))  # reads each value once; numpy releases the GIL
            best = max(best, size * 4 / (time.perf_counter() - begin))
    return round(best / 1e9, 1)


def multiply_add_gflops() -> float:
    """Multiplications and additions per second in float32, in units of 10^9, by numpy's matrix product and as many
    threads as it takes; the best of three."""
    side = 1024
    matrix = np.ones((side, side), dtype=np.float32)
    best = 0.0
    for _ in range(_REPEATS):
        begin = time.perf_counter()
        matrix @ matrix
        best = max(best, 2 * side**3 / (time.perf_counter() - begin))
    return round(best / 1e9, 1)

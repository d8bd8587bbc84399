"""Random numbers from counters: Philox4x32-10 (Salmon et al., SC 2011), and the Gumbel noise made from them.

The same as the native sampler's (csrc/kernels/sampler.h), bit for bit up to the uniform number.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["DRAW_STREAM", "gumbel", "philox", "uniform"]

Words = npt.NDArray[np.uint32]

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
DRAW_STREAM = 0
"""Of the numbers that tokens are drawn with; others are independent of them."""
_LOW = np.uint64(0xFFFFFFFF)


def philox(counters: Words, key: tuple[int, int]) -> Words:
    """Ten rounds. counters [n, 4] -> [n, 4] random words."""
    c0, c1, c2, c3 = (counters[:, i].astype(np.uint64) for i in range(4))
    for step in range(10):
        k0, k1 = (np.uint64((k + step * w) & 0xFFFFFFFF) for k, w in zip(key, _WEYL, strict=True))
        a, b = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (b >> np.uint64(32)) ^ c1 ^ k0, b & _LOW, (a >> np.uint64(32)) ^ c3 ^ k1, a & _LOW
    return np.stack([c0, c1, c2, c3], axis=1).astype(np.uint32)


def uniform(count: int, *, seed: int, choice: int, position: int, stream: int = DRAW_STREAM) -> npt.NDArray[np.float32]:
    """One number in (0, 1) per token id 0 .. count - 1."""
    blocks = -(-count // 4)
    counters = np.empty((blocks, 4), np.uint32)
    counters[:, 0] = np.arange(blocks)
    counters[:, 1:] = choice & 0xFFFFFFFF, position & 0xFFFFFFFF, stream
    words = philox(counters, (seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF)).reshape(-1)[:count]
    numbers = ((words + 0.5) * 2.0**-32).astype(np.float32)
    return np.minimum(numbers, np.float32(1 - 2.0**-24))


def gumbel(count: int, *, seed: int, choice: int, position: int, stream: int = DRAW_STREAM) -> npt.NDArray[np.float64]:
    """-ln(-ln(1 - u)) per token id."""
    u = uniform(count, seed=seed, choice=choice, position=position, stream=stream).astype(np.float64)
    return -np.log(-np.log1p(-u))

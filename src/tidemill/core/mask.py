"""Token masks: which tokens of a vocabulary may be drawn, a bit each.

A mask is the bytes of 32-bit little-endian words, token i being bit i mod 32 of word i div 32; the bits behind the
vocabulary mean nothing. It is the layout that grammar libraries fill and samplers read.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["allows", "both", "mask_bytes", "only", "without"]


def mask_bytes(vocab_size: int) -> int:
    """Bytes of a mask: whole words."""
    return (vocab_size + 31) // 32 * 4


def only(tokens: Iterable[int], vocab_size: int) -> bytes:
    """Allows these tokens alone."""
    mask = bytearray(mask_bytes(vocab_size))
    for token in tokens:
        mask[token >> 3] |= 1 << (token & 7)
    return bytes(mask)


def without(tokens: Iterable[int], vocab_size: int) -> bytes:
    """Allows all but these tokens."""
    mask = bytearray(b"\xff" * mask_bytes(vocab_size))
    for token in tokens:
        mask[token >> 3] &= ~(1 << (token & 7))
    return bytes(mask)


def both(first: bytes | None, second: bytes | None) -> bytes | None:
    """Allows what both allow; None allows everything."""
    if first is None or second is None:
        return second if first is None else first
    together = int.from_bytes(first, "little") & int.from_bytes(second, "little")
    return together.to_bytes(len(first), "little")


def allows(mask: bytes | None, token: int) -> bool:
    """Whether a token may be drawn."""
    return mask is None or bool(mask[token >> 3] >> (token & 7) & 1)

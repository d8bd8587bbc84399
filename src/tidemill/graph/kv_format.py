"""How keys and values are stored: the number formats of the KV cache.

A head's vector of one token is stored by itself. In the formats of whole numbers it is cut into groups of 32, the last
of which may be shorter, and each group becomes a block of GGUF's format of the same name, its scale d in f16:

    q8_0    d = largest magnitude / 127         code = x / d to the nearest whole number, halves away from zero
    q4_0    d = number of that magnitude / -8   code = x / d + 8 to the nearest, halves up, at most 15: means code - 8
"""

from __future__ import annotations

from enum import StrEnum

__all__ = ["KV_GROUP", "KvFormat"]

KV_GROUP = 32
"""Numbers that share a scale."""


class KvFormat(StrEnum):
    """Storage format of keys and values."""

    F16 = "f16"
    F32 = "f32"
    Q8_0 = "q8_0"
    Q4_0 = "q4_0"

    @property
    def quantized(self) -> bool:
        """True for blocks of whole numbers."""
        return self in (KvFormat.Q8_0, KvFormat.Q4_0)

    @property
    def unit_numbers(self) -> int:
        """Numbers that are stored together: a group, or one."""
        return KV_GROUP if self.quantized else 1

    @property
    def unit_bytes(self) -> int:
        """Bytes of these."""
        return _UNIT_BYTES[self]

    def head_bytes(self, head_dim: int) -> int:
        """Bytes of one head's key, or value, of one token: whole units."""
        return -(-head_dim // self.unit_numbers) * self.unit_bytes


_UNIT_BYTES = {KvFormat.F16: 2, KvFormat.F32: 4, KvFormat.Q8_0: 34, KvFormat.Q4_0: 18}

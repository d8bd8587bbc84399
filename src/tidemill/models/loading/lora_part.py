"""The two tensors of one module of an adapter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from tidemill.core.errors import ModelLoadError
from tidemill.models.loading.stored import StoredTensor

__all__ = ["LoraPart"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraPart:
    """A [rank, inputs] and B [outputs, rank] as stored, and the factor of their product."""

    a: StoredTensor
    b: StoredTensor
    scale: float

    @classmethod
    def of(cls, a: StoredTensor, b: StoredTensor, scale: float) -> Self:
        """Raises ModelLoadError for tensors that are no matrices of one rank, or of a type that is not read."""
        for tensor in (a, b):
            if len(tensor.shape) != 2 or 0 in tensor.shape:
                raise ModelLoadError(f"{tensor} is not a matrix")
            tensor.readable_format()
        if a.shape[0] != b.shape[1]:
            raise ModelLoadError(f"{a} has another rank than {b.name} {list(b.shape)}")
        return cls(a=a, b=b, scale=scale)

    @property
    def rank(self) -> int:
        """Width of the values between the two."""
        return self.a.shape[0]

"""A pooled vector as callers get it: cut, normalised, and as numbers or base64."""

from __future__ import annotations

import base64
from typing import Literal

import numpy as np
import numpy.typing as npt

from tidemill.core.embedding import Embedding
from tidemill.core.errors import InvalidRequest, TidemillError, UnsupportedParameter

__all__ = ["check_dimensions", "encoded", "finished"]


def check_dimensions(dimensions: int | None, embedding: Embedding, model: str) -> None:
    """Raise UnsupportedParameter where the model's vectors cannot be shortened, and InvalidRequest for a width that
    they do not have."""
    if dimensions is None or embedding.allows(dimensions):
        return
    if embedding.shorter is None:
        raise UnsupportedParameter(
            f"dimensions: vectors of {model} have {embedding.width} numbers, and its files do not say that they may be "
            "shortened",
            param="dimensions",
        )
    widths = ", ".join(map(str, (*embedding.shorter, embedding.width)))
    allowed = f"one of {widths}" if embedding.shorter else f"between 1 and {embedding.width}"
    raise InvalidRequest(f"dimensions must be {allowed}, not {dimensions}", param="dimensions")


def finished(pooled: bytes, embedding: Embedding, dimensions: int | None = None) -> npt.NDArray[np.float32]:
    """The vector [dimensions]: cut first, then normalised where the model's are. A vector of zeros stays one.

    Raises TidemillError for one that is not finite, which JSON cannot hold.
    """
    vector = np.frombuffer(pooled, "<f4").astype(np.float64)[: dimensions or embedding.width]
    if not np.isfinite(vector).all():
        raise TidemillError("the model gave a vector that is not finite")
    if embedding.normalize:
        length = float(np.sqrt(np.sum(vector * vector)))
        vector = vector / length if length > 0 else vector
    return vector.astype(np.float32)


def encoded(vector: npt.NDArray[np.float32], encoding: Literal["float", "base64"]) -> list[float] | str:
    """As JSON has it: numbers, or the base64 of little-endian float32."""
    if encoding == "float":
        numbers: list[float] = vector.tolist()
        return numbers
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()

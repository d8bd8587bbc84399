"""Weights that can say what they are made from, and in which format, without being made."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tidemill.graph.formats import WeightFormat, WeightTensor

__all__ = ["WeightOrigin", "WeightSource", "formats_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightOrigin:
    """What decides a weight's bytes: two weights of equal origin are equal, byte for byte."""

    recipe: str
    """How the weight is made from the pieces: format, shape, order of rows, whatever else is done to them."""
    pieces: tuple[npt.NDArray[np.uint8], ...]
    """Bytes as stored, in order; views may skip some."""


class WeightSource(Mapping[str, WeightTensor]):
    """A model's weights, each made when it is asked for."""

    @property
    @abstractmethod
    def label(self) -> str:
        """Where they come from, for people."""

    @abstractmethod
    def format_of(self, name: str) -> WeightFormat:
        """The format in which a weight is given. Raises ModelLoadError for one that is missing."""

    @abstractmethod
    def origin_of(self, name: str) -> WeightOrigin:
        """What a weight is made from; nothing is read or copied."""


def formats_of(weights: Mapping[str, WeightTensor], names: Iterable[str]) -> dict[str, WeightFormat]:
    """The formats of the weights named; of a source that knows them, without a weight being made."""
    if isinstance(weights, WeightSource):
        return {name: weights.format_of(name) for name in names}
    return {name: weights[name].format for name in names}

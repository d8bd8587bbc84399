"""AWQ checkpoints (AutoAWQ's gemm arrangement): 4-bit codes with zero points.

    <module>.qweight  I32 [k, n / 8]            eight outputs per word
    <module>.qzeros   I32 [k / group, n / 8]    alike
    <module>.scales   F16 [k / group, n]

Nibble j of a word (lowest first) is of output 0, 2, 4, 6, 1, 3, 5, 7 of its eight. value = (code - zero) * scale.
Source: AutoAWQ, awq/utils/packing_utils.py and awq/modules/linear/gemm.py.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tidemill.core.errors import ModelLoadError
from tidemill.graph.formats import WeightFormat
from tidemill.models.fields import Fields
from tidemill.models.loading.integer_rows import Floats, Words, fields_of_words, integer_rows
from tidemill.models.loading.modules import Module, modules_with
from tidemill.models.loading.stored import StoredTensor
from tidemill.models.loading.stored_rows import Bytes

__all__ = ["planned_format", "unpacked"]

_PLACES = np.array([0, 4, 1, 5, 2, 6, 3, 7])
"""The nibble of each output."""


def planned_format(fields: Fields) -> WeightFormat:
    """What its modules become."""
    _check(fields)
    return WeightFormat.Q4_Z


def unpacked(fields: Fields, stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """See models/loading/quantization.py."""
    _check(fields)
    tensors = dict(stored)
    for module in modules_with(tensors, "qweight"):
        _unpack(module, fields)
    return tensors


def _check(fields: Fields) -> None:
    if fields.integer("bits", 4) != 4:
        raise fields.error("bits", f"is {fields.integer('bits')}; of AWQ this build reads 4")
    if fields.text("version", "gemm").lower() != "gemm":
        raise fields.error("version", f"is {fields.text('version')!r}; of AWQ this build reads the arrangement gemm")
    if not fields.flag("zero_point", True):
        raise fields.error("zero_point", "is false; the arrangement gemm has zero points")


def _unpack(module: Module, fields: Fields) -> None:
    like = module.stored[f"{module.name}.qweight"]
    words, zero_words, scales = module.words("qweight"), module.words("qzeros"), module.scales("scales")
    columns, outputs = words.shape[0], 8 * words.shape[1]
    asked = fields.integer("group_size", 128, low=-1)
    group = columns if asked < 1 else asked
    groups = -(-columns // group)
    if zero_words.shape != (groups, outputs // 8) or scales.shape != (groups, outputs):
        raise ModelLoadError(
            f"{like}: group_size {asked} wants scales {[groups, outputs]}, and they are {list(scales.shape)}"
        )
    rows = integer_rows(
        str(like),
        kind="awq gemm",
        shape=(outputs, columns),
        bits=4,
        group=group,
        nbytes=words.nbytes + zero_words.nbytes + 2 * scales.size,
        codes=lambda begin, end: _outputs(words, begin, end),
        zeros=lambda begin, end: _outputs(zero_words, begin, end).astype(np.int16),
        scales=lambda begin, end: _turned(scales, begin, end),
    )
    module.put(like, f"awq 4 bits, groups of {group}", (outputs, columns), rows)


def _outputs(words: Words, begin: int, end: int) -> Bytes:
    """Fields of some outputs. [k, n / 8] words -> [outputs, k]"""
    first = begin // 8
    fields = fields_of_words(words[:, first : -(-end // 8)], 4)
    ordered = fields.reshape(len(fields), -1, 8)[:, :, _PLACES].reshape(len(fields), -1)
    return np.ascontiguousarray(ordered[:, begin - 8 * first : end - 8 * first].T)


def _turned(scales: Floats, begin: int, end: int) -> npt.NDArray[np.float32]:
    return np.ascontiguousarray(scales[:, begin:end].T)

"""GPTQ checkpoints: 4- or 8-bit codes, symmetric or with zeros.

    <module>.qweight  I32 [k / per word, n]                per word 8 or 4 values along k, the lowest field first
    <module>.qzeros   I32 [k / group, n / per word]        along n
    <module>.scales   F16 [k / group, n]
    <module>.g_idx    I32 [k]                              the group of each k

value = (code - zero) * scale. ``checkpoint_format`` gptq (the default) stores zero - 1, gptq_v2 the zero.
Source: AutoGPTQ's and GPTQModel's quantised linear layers.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tidemill.core.errors import ModelLoadError
from tidemill.graph.formats import WeightFormat
from tidemill.models.fields import Fields
from tidemill.models.loading.integer_rows import Words, fields_of_words, integer_rows
from tidemill.models.loading.modules import Module, modules_with
from tidemill.models.loading.stored import StoredTensor
from tidemill.models.loading.stored_rows import Bytes

__all__ = ["planned_format", "unpacked"]

_ADDED = {"gptq": 1, "gptq_v2": 0}


def planned_format(fields: Fields) -> WeightFormat:
    """What its modules become, if its zeros are what ``sym`` says."""
    bits = _checked_bits(fields)
    if bits == 8:
        return WeightFormat.Q8_0
    return WeightFormat.Q4_0 if fields.flag("sym", True) else WeightFormat.Q4_Z


def unpacked(fields: Fields, stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """See models/loading/quantization.py."""
    bits = _checked_bits(fields)
    tensors = dict(stored)
    for module in modules_with(tensors, "qweight"):
        _unpack(module, fields, bits)
    return tensors


def _checked_bits(fields: Fields) -> int:
    bits = fields.integer("bits")
    if bits not in {4, 8}:
        raise fields.error("bits", f"is {bits}; of GPTQ this build reads 4 and 8")
    form = fields.text("checkpoint_format", "gptq")
    if form not in _ADDED:
        raise fields.error("checkpoint_format", f"is {form!r}; this build reads {', '.join(_ADDED)}")
    if fields.section("dynamic").values:
        raise fields.error("dynamic", "gives modules settings of their own, which this build does not read")
    return bits


def _unpack(module: Module, fields: Fields, bits: int) -> None:
    like = module.stored[f"{module.name}.qweight"]
    words, zero_words, scales = module.words("qweight"), module.words("qzeros"), module.scales("scales")
    per_word = 32 // bits
    outputs, columns = words.shape[1], words.shape[0] * per_word
    asked = fields.integer("group_size", 128, low=-1)
    group = columns if asked < 1 else asked
    groups = -(-columns // group)
    if zero_words.shape != (groups, outputs // per_word) or scales.shape != (groups, outputs):
        raise ModelLoadError(
            f"{like}: group_size {asked} wants scales {[groups, outputs]}, and they are {list(scales.shape)}"
        )
    if module.has("g_idx"):
        _check_order(like, module.integers("g_idx", "I32"), columns, group)
    added = _ADDED[fields.text("checkpoint_format", "gptq")]
    if added:
        _check_zeros(like, zero_words, bits)
    rows = integer_rows(
        str(like),
        kind=f"gptq {bits} bits, zeros + {added}",
        shape=(outputs, columns),
        bits=bits,
        group=group,
        nbytes=words.nbytes + zero_words.nbytes + 2 * scales.size,
        codes=lambda begin, end: _codes(words, bits, begin, end),
        zeros=lambda begin, end: _zeros(zero_words, bits, begin, end) + np.int16(added),
        scales=lambda begin, end: np.ascontiguousarray(scales[:, begin:end].T),
    )
    module.put(like, f"gptq {bits} bits, groups of {group}", (outputs, columns), rows)


def _check_order(like: StoredTensor, groups: npt.NDArray[np.int64], columns: int, group: int) -> None:
    """Activation order: neighbours of one group lie apart, and no kernel here gathers them."""
    if groups.shape != (columns,) or (groups != np.arange(columns) // group).any():
        raise ModelLoadError(
            f"{like}: g_idx is not 0, 0, ..., 1, 1, ... in groups of {group} (desc_act): this build reads groups of "
            "neighbours"
        )


def _check_zeros(like: StoredTensor, words: Words, bits: int) -> None:
    """A zero of 0 does not fit the old convention: packed as -1 it runs into its neighbours, and readers differ."""
    if (fields_of_words(words, bits) == (1 << bits) - 1).any():
        raise ModelLoadError(
            f"{like}: qzeros has a field with all bits set, which readers of checkpoint_format gptq take as 0 or as "
            f"{1 << bits}; save it as gptq_v2"
        )


def _codes(words: Words, bits: int, begin: int, end: int) -> Bytes:
    return fields_of_words(words[:, begin:end].T, bits)


def _zeros(words: Words, bits: int, begin: int, end: int) -> npt.NDArray[np.int16]:
    per_word = 32 // bits
    first = begin // per_word
    fields = fields_of_words(words[:, first : -(-end // per_word)], bits)
    return np.ascontiguousarray(fields[:, begin - per_word * first : end - per_word * first].T).astype(np.int16)

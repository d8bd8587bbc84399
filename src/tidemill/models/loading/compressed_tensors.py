"""compressed-tensors checkpoints (llm-compressor): fp8, and 4- or 8-bit whole numbers with float activations.

    format float-quantized   as fp8.py, with weight_scale; strategy block: a grid of block_structure
    format pack-quantized    <module>.weight_packed      I32 [n, k / per word]: fields along k, the lowest first,
                                                         of numbers raised by half their range
                             <module>.weight_scale       [n, k / group]
                             <module>.weight_zero_point  I32 [n / per word, k / group], alike; absent: all 0
                             <module>.weight_shape       I64 [2]: n, k

Source: the compressed-tensors package, compressors/quantized_compressors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tidemill.core.errors import ModelLoadError
from tidemill.graph.formats import WeightFormat
from tidemill.models.fields import Fields
from tidemill.models.loading.fp8 import float8_modules
from tidemill.models.loading.integer_rows import Words, fields_of_words, integer_rows
from tidemill.models.loading.modules import Module, modules_with
from tidemill.models.loading.stored import StoredTensor

__all__ = ["planned_format", "unpacked"]

_FLOATS = {"float-quantized", "naive-quantized"}
_INTEGERS = {"pack-quantized"}


def planned_format(fields: Fields) -> WeightFormat:
    """What its modules become."""
    _check(fields)
    if fields.text("format") in _FLOATS:
        return WeightFormat.F8_E4M3
    weights = next(_groups(fields)).section("weights")
    if weights.integer("num_bits") == 8:
        return WeightFormat.Q8_0
    return WeightFormat.Q4_0 if weights.flag("symmetric", True) else WeightFormat.Q4_Z


def unpacked(fields: Fields, stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """See models/loading/quantization.py."""
    _check(fields)
    tensors = dict(stored)
    if fields.text("format") in _FLOATS:
        return float8_modules(tensors, _block(fields))
    for module in modules_with(tensors, "weight_packed"):
        _unpack(module)
    return tensors


def _check(fields: Fields) -> None:
    form = fields.text("format")
    if form not in _FLOATS | _INTEGERS:
        known = ", ".join(sorted(_FLOATS | _INTEGERS))
        raise fields.error("format", f"is {form!r}; this build reads {known}")
    if fields.values.get("kv_cache_scheme") is not None:
        raise fields.error("kv_cache_scheme", "is set: KV here is f16 or f32, and its scales would be ignored")
    if fields.section("sparsity_config").text("format", "dense") != "dense":
        raise fields.error("sparsity_config", "names a sparse form, which this build does not read")
    if fields.section("transform_config").values:
        raise fields.error("transform_config", "names transforms of activations, which this build does not know")
    for group in _groups(fields):
        _check_group(group, "float" if form in _FLOATS else "int")


def _groups(fields: Fields) -> Iterator[Fields]:
    groups = fields.section("config_groups")
    if not groups.values:
        raise fields.error("config_groups", "is missing or empty")
    return (groups.section(name) for name in groups.values)


def _check_group(group: Fields, kind: str) -> None:
    weights = group.section("weights")
    if weights.text("type", "int") != kind:
        raise weights.error("type", f"is {weights.text('type', 'int')!r}; expected {kind!r} in this format")
    bits = weights.integer("num_bits")
    if bits not in ({8} if kind == "float" else {4, 8}):
        raise weights.error("num_bits", f"is {bits}; this build reads 8-bit floats, and 4- and 8-bit whole numbers")
    if weights.values.get("actorder") in {"group", True}:
        raise weights.error("actorder", "is group: this build reads groups of neighbours")
    if weights.values.get("dynamic") not in {None, False}:
        raise weights.error("dynamic", "is set: weights have their scales in the file")
    inputs: Any = group.values.get("input_activations")
    if inputs is not None and group.section("input_activations").values.get("dynamic") is not True:
        raise group.error(
            "input_activations",
            "is static: activations are not rounded as it says here, and its scales would be ignored; a checkpoint "
            "with dynamic activations loads",
        )
    if group.values.get("output_activations") is not None:
        raise group.error("output_activations", "is set: outputs are not rounded here")


def _block(fields: Fields) -> tuple[int, int] | None:
    """The rectangle of a scale, of groups with strategy block."""
    for group in _groups(fields):
        sizes = group.section("weights").values.get("block_structure")
        if sizes is None:
            continue
        if not isinstance(sizes, list) or len(sizes) != 2 or not all(type(size) is int for size in sizes):
            raise group.error("block_structure", f"must be two whole numbers, not {sizes!r}")
        if sizes[0] < 1 or sizes[1] < 1 or sizes[1] % 32:
            raise group.error("block_structure", f"is {sizes}: {sizes[1]} columns are not whole blocks of 32")
        return sizes[0], sizes[1]
    return None


def _unpack(module: Module) -> None:
    like = module.stored[f"{module.name}.weight_packed"]
    words, scales = module.words("weight_packed"), module.scales("weight_scale")
    shape = module.integers("weight_shape", "I64").tolist()
    if len(shape) != 2 or shape[0] != len(words) or shape[1] not in {8 * words.shape[1], 4 * words.shape[1]}:
        raise ModelLoadError(f"{like}: weight_shape {shape} is not that of 4 or 8 bits in these words")
    outputs, columns = shape
    bits = 32 * words.shape[1] // columns
    if module.has("weight_g_idx"):
        raise ModelLoadError(f"{module.name}.weight_g_idx: this build reads groups of neighbours")
    groups = scales.shape[1] if scales.ndim == 2 else 1
    group = columns // groups
    if scales.size != outputs * groups or groups * group != columns:
        raise ModelLoadError(f"{like}: weight_scale {list(scales.shape)} is not one per row and group")
    scales = scales.reshape(outputs, groups)
    zeros = module.words("weight_zero_point") if module.has("weight_zero_point") else None
    if zeros is not None and zeros.shape != (-(-outputs * bits // 32), groups):
        raise ModelLoadError(f"{like}: weight_zero_point {list(zeros.shape)} is not one per row and group")
    rows = integer_rows(
        str(like),
        kind=f"packed {bits} bits",
        shape=(outputs, columns),
        bits=bits,
        group=group,
        nbytes=words.nbytes + 2 * scales.size + (0 if zeros is None else zeros.nbytes),
        codes=lambda begin, end: fields_of_words(words[begin:end], bits),
        zeros=lambda begin, end: _zeros(zeros, bits, begin, end, groups),
        scales=lambda begin, end: scales[begin:end],
    )
    module.put(like, f"compressed-tensors {bits} bits, groups of {group}", (outputs, columns), rows)


def _zeros(words: Words | None, bits: int, begin: int, end: int, groups: int) -> npt.NDArray[np.int16]:
    if words is None:
        return np.full((end - begin, groups), 1 << bits - 1, np.int16)
    per_word = 32 // bits
    first = begin // per_word
    fields = fields_of_words(words[first : -(-end // per_word)].T, bits)
    return fields[:, begin - per_word * first : end - per_word * first].T.astype(np.int16)

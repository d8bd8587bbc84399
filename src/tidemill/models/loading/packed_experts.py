"""The experts of a gpt-oss checkpoint, each layer's in a few tensors, as the graph names them.

    gate_up_proj_blocks  [experts, 2 x width, groups, 16]   two 4-bit floats a byte, neighbours in a row
    gate_up_proj_scales  [experts, 2 x width, groups]       exponents, one per 32 values
    gate_up_proj         [experts, hidden, 2 x width]       instead of these two, where the experts are plain numbers
    gate_up_proj_bias    [experts, 2 x width]               rows (here columns): gate 0, up 0, gate 1, up 1, ...
    down_proj*           likewise, [.., hidden, ..] rows of width values, not in turn

Source: transformers' GptOssForCausalLM and its integration of mxfp4. Nothing is read or copied before a weight is asked
for: what is kept of a tensor are views.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tidemill.core.errors import ModelLoadError
from tidemill.graph.formats import WeightFormat
from tidemill.models.loading.stored import StoredTensor

__all__ = ["in_four_bits", "unpack_experts"]

_EXPERTS = re.compile(r"(model\.layers\.\d+\.mlp\.experts)\.(gate_up_proj|down_proj)(_blocks|_scales|_bias|)")
_RENAMED = ((".mlp.router.", ".mlp.gate."), (".self_attn.sinks", ".self_attn.sinks.weight"))
_HALF_BLOCK = 16
"""Bytes of the 32 values that share an exponent."""
_Bytes = npt.NDArray[np.uint8]


def in_four_bits(values: Mapping[str, Any]) -> bool:
    """Whether a configuration says that its experts, and nothing else, are in mxfp4."""
    section = values.get("quantization_config")
    named = section.get("quant_method") if isinstance(section, Mapping) else None
    return values.get("model_type") == "gpt_oss" and named == "mxfp4"


def unpack_experts(stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """All tensors under the graph's names. Raises ModelLoadError for blocks without scales or of another shape."""
    named: dict[str, StoredTensor] = {}
    for name, tensor in stored.items():
        match = _EXPERTS.fullmatch(name)
        if match is None:
            named[_renamed(name)] = tensor
        elif match[3] != "_scales":
            named |= _parts(match, tensor, stored)
        elif name.replace("_scales", "_blocks") not in stored:
            raise ModelLoadError(f"{tensor} has no blocks beside it")
    return named


def _renamed(name: str) -> str:
    for old, new in _RENAMED:
        name = name.replace(old, new)
    return name


def _parts(match: re.Match[str], tensor: StoredTensor, stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    at, projection, kind = match.groups()
    whole = _with_scales(tensor, stored.get(f"{at}.{projection}_scales")) if kind == "_blocks" else tensor
    rows = _rows(whole, kind)
    suffix = "bias" if kind == "_bias" else "weight"
    if projection == "down_proj":
        return {f"{at}.down_proj.{suffix}": _part(whole, rows, 0, 1)}
    return {f"{at}.{part}.{suffix}": _part(whole, rows, turn, 2) for turn, part in enumerate(("gate_proj", "up_proj"))}


def _with_scales(blocks: StoredTensor, scales: StoredTensor | None) -> StoredTensor:
    if scales is None:
        raise ModelLoadError(f"{blocks} has no scales beside it")
    if not _are_bytes(blocks) or len(blocks.shape) != 4 or blocks.shape[3] != _HALF_BLOCK:
        raise ModelLoadError(f"{blocks} is not of bytes [experts, rows, groups, {_HALF_BLOCK}]")
    if not _are_bytes(scales) or scales.shape != blocks.shape[:3]:
        raise ModelLoadError(f"{scales} is not of bytes {list(blocks.shape[:3])}, the groups of {blocks.name}")
    return replace(blocks, format=WeightFormat.MXFP4, type_name="mxfp4", scales=scales.data.reshape(scales.shape))


def _are_bytes(tensor: StoredTensor) -> bool:
    return tensor.type_name == "U8" and tensor.data.size == math.prod(tensor.shape)


def _rows(tensor: StoredTensor, kind: str) -> _Bytes:
    """The bytes as [experts, rows, ...], what belongs to a row last."""
    if kind == "_blocks":
        return tensor.data.reshape(tensor.shape)
    wanted = 2 if kind == "_bias" else 3
    if len(tensor.shape) != wanted:
        raise ModelLoadError(f"{tensor} has the wrong shape; expected {wanted} dimensions")
    values = tensor.data.reshape(*tensor.shape, tensor.readable_format().block_bytes)
    return values if kind == "_bias" else values.swapaxes(1, 2)


def _part(tensor: StoredTensor, rows: _Bytes, turn: int, turns: int) -> StoredTensor:
    """Every ``turns``-th row from number ``turn`` on, the experts' one after another."""
    if rows.shape[1] % turns:
        raise ModelLoadError(f"{tensor} has an odd number of rows, so they are not gate and up in turn")
    scales = tensor.scales
    columns: tuple[int, ...] = ()
    if scales is not None:
        scales = scales[:, turn::turns]
        columns = (32 * scales.shape[2],)
    elif rows.ndim == 4:
        columns = (rows.shape[2],)
    part = rows[:, turn::turns]
    return replace(tensor, data=part, scales=scales, shape=(math.prod(part.shape[:2]), *columns))

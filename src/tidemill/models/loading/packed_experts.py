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

from tidemill.core.errors import ModelLoadError
from tidemill.models.loading.float4_rows import Float4Rows
from tidemill.models.loading.stored import StoredTensor

__all__ = ["in_four_bits", "unpack_experts"]

_EXPERTS = re.compile(r"(model\.layers\.\d+\.mlp\.experts)\.(gate_up_proj|down_proj)(_blocks|_scales|_bias|)")
_RENAMED = ((".mlp.router.", ".mlp.gate."), (".self_attn.sinks", ".self_attn.sinks.weight"))
_HALF_BLOCK = 16
"""Bytes of the 32 values that share an exponent."""


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
    parts = ("gate_proj", "up_proj") if projection == "gate_up_proj" else ("down_proj",)
    suffix = "bias" if kind == "_bias" else "weight"
    if kind == "_blocks":
        pieces = _packed(tensor, stored.get(f"{at}.{projection}_scales"), len(parts))
    else:
        pieces = _plain(tensor, len(parts), bias=kind == "_bias")
    return {f"{at}.{part}.{suffix}": piece for part, piece in zip(parts, pieces, strict=True)}


def _packed(blocks: StoredTensor, scales: StoredTensor | None, turns: int) -> list[StoredTensor]:
    """Each ``turns``-th row of every expert, from the first on, from the second on, ..."""
    if scales is None:
        raise ModelLoadError(f"{blocks} has no scales beside it")
    if not _are_bytes(blocks) or len(blocks.shape) != 4 or blocks.shape[3] != _HALF_BLOCK:
        raise ModelLoadError(f"{blocks} is not of bytes [experts, rows, groups, {_HALF_BLOCK}]")
    if not _are_bytes(scales) or scales.shape != blocks.shape[:3]:
        raise ModelLoadError(f"{scales} is not of bytes {list(blocks.shape[:3])}, the groups of {blocks.name}")
    each = _rows_each(blocks, blocks.shape[1], turns)
    codes, exponents = blocks.data.reshape(blocks.shape), scales.data.reshape(scales.shape)
    pieces = [Float4Rows(codes=codes[:, turn::turns], exponents=exponents[:, turn::turns]) for turn in range(turns)]
    return [
        replace(
            blocks,
            type_name="mxfp4",
            format=rows.format,
            shape=(blocks.shape[0] * each, 2 * _HALF_BLOCK * blocks.shape[2]),
            data=np.empty(0, np.uint8),
            rows=rows,
            sources=(rows.codes, rows.exponents),
        )
        for rows in pieces
    ]


def _plain(tensor: StoredTensor, turns: int, *, bias: bool) -> list[StoredTensor]:
    """The same of rows of numbers, which lie one beside the other."""
    wanted = 2 if bias else 3
    if len(tensor.shape) != wanted:
        raise ModelLoadError(f"{tensor} has the wrong shape; expected {wanted} dimensions")
    values = tensor.data.reshape(*tensor.shape, tensor.readable_format().block_bytes)
    rows = values if bias else values.swapaxes(1, 2)
    each = _rows_each(tensor, rows.shape[1], turns)
    shape = (rows.shape[0] * each, *rows.shape[2:-1])
    return [replace(tensor, data=rows[:, turn::turns], shape=shape) for turn in range(turns)]


def _rows_each(tensor: StoredTensor, rows: int, turns: int) -> int:
    if rows % turns:
        raise ModelLoadError(f"{tensor} has an odd number of rows, so they are not gate and up in turn")
    return rows // turns


def _are_bytes(tensor: StoredTensor) -> bool:
    return tensor.type_name == "U8" and tensor.data.size == math.prod(tensor.shape)

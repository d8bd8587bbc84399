"""fp8 checkpoints: e4m3fn weights with a scale per tensor, per row, or per block (DeepSeek, Qwen3).

    <module>.weight            F8_E4M3 [n, k]
    <module>.weight_scale_inv  F32 [n / rows, k / columns of weight_block_size]; despite its name it multiplies
    <module>.weight_scale      F32, F16 or BF16: [] or [1]: per tensor; [n] or [n, 1]: per row

``activation_scheme`` dynamic: the checkpoint leaves it to the engine how activations are rounded; here they are not.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tidemill.core.errors import ModelLoadError
from tidemill.graph.formats import WeightFormat
from tidemill.models.fields import Fields
from tidemill.models.loading.float8_rows import Float8Rows
from tidemill.models.loading.modules import Module, modules_with
from tidemill.models.loading.stored import StoredTensor

__all__ = ["float8_modules", "planned_format", "unpacked"]

_TYPE = "F8_E4M3"
_GROUP = 32


def planned_format(fields: Fields) -> WeightFormat:
    """What its modules become."""
    _block(fields)
    return WeightFormat.F8_E4M3


def unpacked(fields: Fields, stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """See models/loading/quantization.py."""
    return float8_modules(dict(stored), _block(fields))


def float8_modules(tensors: dict[str, StoredTensor], block: tuple[int, int] | None) -> dict[str, StoredTensor]:
    """All e4m3 weights with their scales; ``block`` is the rectangle of a scale where there is a grid of them."""
    for module in modules_with(tensors, "weight"):
        if tensors[f"{module.name}.weight"].type_name == _TYPE:
            _unpack(module, block)
    return tensors


def _block(fields: Fields) -> tuple[int, int] | None:
    """weight_block_size, with everything else checked."""
    if fields.text("fmt", "e4m3") not in {"e4m3", "float8_e4m3fn"}:
        raise fields.error("fmt", f"is {fields.text('fmt')!r}; this build reads e4m3")
    if fields.text("activation_scheme", "dynamic") != "dynamic":
        raise fields.error(
            "activation_scheme",
            f"is {fields.text('activation_scheme')!r}: activations are not rounded to 8-bit floats here, and its "
            "scales would be ignored; a checkpoint with dynamic activations loads",
        )
    if fields.values.get("weight_block_size") is None:
        return None
    sizes = fields.values["weight_block_size"]
    if not isinstance(sizes, list) or len(sizes) != 2 or not all(type(size) is int and size > 0 for size in sizes):
        raise fields.error("weight_block_size", f"must be two whole numbers, not {sizes!r}")
    if sizes[1] % _GROUP:
        raise fields.error("weight_block_size", f"is {sizes}: {sizes[1]} columns are not whole blocks of {_GROUP}")
    return sizes[0], sizes[1]


def _unpack(module: Module, block: tuple[int, int] | None) -> None:
    weight = module.take("weight", _TYPE, 2)
    rows, columns = weight.shape
    name = next((part for part in ("weight_scale_inv", "weight_scale") if module.has(part)), None)
    if name is None:
        raise ModelLoadError(f"{weight} has no {module.name}.weight_scale or weight_scale_inv beside it")
    scales = module.scales(name)
    if columns % _GROUP:
        raise ModelLoadError(f"{weight}: rows of {columns} are not whole blocks of {_GROUP} values")
    if not np.isfinite(scales).all():
        raise ModelLoadError(f"{module.name}.{name} has a scale that is not a finite number")
    grid, size = _grid(scales, rows, columns, block)
    if grid is None:
        wanted = "" if block is None else f", or {[-(-rows // block[0]), -(-columns // block[1])]}"
        raise ModelLoadError(
            f"{weight}: {module.name}.{name} is {list(scales.shape)}; expected [], [1], [{rows}, 1]{wanted}"
        )
    source = Float8Rows(what=str(weight), codes=weight.data.reshape(rows, columns), scales=grid, block=size)
    module.put(weight, "fp8 e4m3", (rows, columns), source)


def _grid(
    scales: npt.NDArray[np.float32], rows: int, columns: int, block: tuple[int, int] | None
) -> tuple[npt.NDArray[np.float32] | None, tuple[int, int]]:
    """The scales as a grid [along rows, along columns], and the rectangle of each."""
    if scales.size == 1:
        return scales.reshape(1, 1), (rows, columns)
    if block is not None and scales.shape == (-(-rows // block[0]), -(-columns // block[1])):
        return scales, block
    if scales.shape in {(rows,), (rows, 1)}:
        return scales.reshape(rows, 1), (1, columns)
    return None, (0, 0)

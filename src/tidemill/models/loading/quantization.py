"""``quantization_config``: a checkpoint's packed tensors become weights under their plain names.

Each method has a file that reads its settings and its tensors (``Method``). A setting that no kernel honours is refused
by name: nothing is ignored that would change a value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tidemill.graph.formats import WeightFormat
from tidemill.models.fields import Fields
from tidemill.models.loading import awq, compressed_tensors, fp8, gptq
from tidemill.models.loading.stored import StoredTensor

__all__ = ["METHODS", "planned_format", "unpacked"]

_FIELD = "quantization_config"
Reader = Callable[[Fields, Mapping[str, StoredTensor]], dict[str, StoredTensor]]

METHODS: dict[str, Reader] = {
    "awq": awq.unpacked,
    "compressed-tensors": compressed_tensors.unpacked,
    "fp8": fp8.unpacked,
    "gptq": gptq.unpacked,
}
_PLANS: dict[str, Callable[[Fields], WeightFormat]] = {
    "awq": awq.planned_format,
    "compressed-tensors": compressed_tensors.planned_format,
    "fp8": fp8.planned_format,
    "gptq": gptq.planned_format,
}


def unpacked(values: Mapping[str, Any], stored: Mapping[str, StoredTensor], where: str) -> dict[str, StoredTensor]:
    """The tensors of a checkpoint, those of its quantised modules under ``<module>.weight``.

    Raises ModelLoadError naming the setting or the tensor that cannot be read as it is meant.
    """
    fields = _section(values, where)
    return dict(stored) if fields is None else METHODS[fields.text("quant_method")](fields, stored)


def planned_format(values: Mapping[str, Any], where: str) -> WeightFormat | None:
    """What the quantised modules of a configuration become; None: it has none."""
    fields = _section(values, where)
    return None if fields is None else _PLANS[fields.text("quant_method")](fields)


def _section(values: Mapping[str, Any], where: str) -> Fields | None:
    outer = Fields(values, where)
    if _FIELD not in outer:
        return None
    fields = outer.section(_FIELD)
    if fields.text("quant_method") not in METHODS:
        known = ", ".join(sorted(METHODS))
        raise fields.error("quant_method", f"is {fields.text('quant_method')!r}; this build reads {known}")
    return fields

"""Rotary frequencies from a model's rope parameters, in float64.

Sources: RoFormer (arXiv:2104.09864) for the frequencies; linear scaling divides positions (arXiv:2306.15595); llama3
scaling is that of Meta's Llama 3.1 reference, as in transformers' modeling_rope_utils.
"""

from __future__ import annotations

import math

from tidemill.graph.graph import RopeSpec
from tidemill.models.fields import Fields

__all__ = ["DEFAULT_THETA", "rope_spec"]

DEFAULT_THETA = 10000.0


def rope_spec(fields: Fields, head_dim: int) -> RopeSpec:
    """The RopeSpec that a configuration asks for.

    Reads ``rope_parameters`` or ``rope_scaling`` (kind under ``rope_type`` or ``type``), ``rope_theta`` inside them or
    beside them, and ``rope_divisors`` (a GGUF file's per-frequency divisors). Raises ModelLoadError for a kind it does
    not know, and for a field that the kind needs and is not there.
    """
    if head_dim % 2:
        raise fields.error("head_dim", f"must be even to be rotated, not {head_dim}")
    name = "rope_parameters" if "rope_parameters" in fields else "rope_scaling"
    rope = fields.section(name)
    kind = rope.text("rope_type", rope.text("type", "default"))
    if kind not in _SCALINGS:
        raise fields.error(name, f"has type {kind!r}; this build knows {', '.join(_SCALINGS)}")
    for holder in (rope, fields):
        if holder.number("partial_rotary_factor", 1.0) != 1.0:
            raise holder.error("partial_rotary_factor", "other than 1 is not something this build knows")
    theta = rope.number("rope_theta", fields.number("rope_theta", DEFAULT_THETA))
    frequencies = [theta ** (-2.0 * i / head_dim) for i in range(head_dim // 2)]
    return RopeSpec(inv_freq=tuple(_divided(_SCALINGS[kind](frequencies, rope), fields)))


def _divided(frequencies: list[float], fields: Fields) -> list[float]:
    divisors = fields.numbers("rope_divisors")
    if not divisors:
        return frequencies
    if len(divisors) != len(frequencies):
        raise fields.error("rope_divisors", f"has {len(divisors)} values, expected {len(frequencies)}")
    return [frequency / divisor for frequency, divisor in zip(frequencies, divisors, strict=True)]


def _default(frequencies: list[float], _rope: Fields) -> list[float]:
    return frequencies


def _linear(frequencies: list[float], rope: Fields) -> list[float]:
    factor = rope.number("factor")
    return [frequency / factor for frequency in frequencies]


def _llama3(frequencies: list[float], rope: Fields) -> list[float]:
    factor = rope.number("factor")
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    original = rope.number("original_max_position_embeddings")
    if low >= high:
        raise rope.error("low_freq_factor", f"must be below high_freq_factor, not {low:g} with {high:g}")

    def scaled(frequency: float) -> float:
        # Full turns within the original length: few turns are slowed down by factor, many are kept, between is blended.
        turns = original * frequency / (2 * math.pi)
        kept = min(max((turns - low) / (high - low), 0.0), 1.0)
        return (1.0 - kept) * frequency / factor + kept * frequency

    return [scaled(frequency) for frequency in frequencies]


_SCALINGS = {"default": _default, "linear": _linear, "llama3": _llama3}

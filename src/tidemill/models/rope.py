"""Rotary frequencies from a model's rope parameters, in float64.

Sources: RoFormer (arXiv:2104.09864) for the frequencies; linear scaling divides positions (arXiv:2306.15595); YaRN
(arXiv:2309.00071); LongRoPE (arXiv:2402.13753); llama3 scaling is that of Meta's Llama 3.1 reference. Field names and
defaults are those of transformers' modeling_rope_utils.

Frequencies are fixed when the model is loaded. Two kinds of transformers' change them with the length of the sequence:

    dynamic    scales nothing up to max_position_embeddings, and no sequence here is longer: the default frequencies
    longrope   has two sets of divisors. A model loaded for more tokens than the original length (``max_model_len``,
               else max_position_embeddings) uses the long ones for every sequence, otherwise the short ones
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tidemill.graph.graph import RopeSpec
from tidemill.models.fields import Fields

__all__ = ["DEFAULT_THETA", "KINDS", "rope_spec"]

DEFAULT_THETA = 10000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rope:
    """What a scaling works with."""

    theta: float
    dimensions: int
    """Of a head, those that are rotated."""
    own: Fields
    """The section with the kind's own fields."""
    fields: Fields
    """The whole configuration."""

    @property
    def frequencies(self) -> list[float]:
        return [self.theta ** (-2.0 * i / self.dimensions) for i in range(self.dimensions // 2)]

    def original(self) -> int:
        """The length that the frequencies were trained for."""
        name = "original_max_position_embeddings"
        holder = self.fields if name in self.fields else self.own
        return holder.integer(name, self.fields.integer("max_position_embeddings", 2048))

    def stretch(self) -> float:
        """How much longer than the original length the model is made for."""
        if "factor" in self.own:
            return self.own.number("factor")
        return self.fields.integer("max_position_embeddings", 2048) / self.original()


def rope_spec(fields: Fields, head_dim: int, *, theta: float = DEFAULT_THETA) -> RopeSpec:
    """The RopeSpec that a configuration asks for; ``theta`` is the architecture's own default base.

    Reads ``rope_parameters`` or ``rope_scaling`` (kind under ``rope_type`` or ``type``), ``rope_theta`` and
    ``partial_rotary_factor`` inside them or beside them, and ``rope_divisors`` (a GGUF file's per-frequency divisors).
    Raises ModelLoadError for a kind it does not know, and for a field that the kind needs and is not there.
    """
    name = "rope_parameters" if "rope_parameters" in fields else "rope_scaling"
    own = fields.section(name)
    kind = own.text("rope_type", own.text("type", "default"))
    if kind not in _SCALINGS:
        raise fields.error(name, f"has type {kind!r}; this build knows {', '.join(_SCALINGS)}")
    rope = _Rope(
        theta=own.number("rope_theta", fields.number("rope_theta", theta)),
        dimensions=_dimensions(own, fields, head_dim),
        own=own,
        fields=fields,
    )
    frequencies, attention_factor = _SCALINGS[kind](rope)
    return RopeSpec(inv_freq=tuple(_divided(frequencies, fields)), attention_factor=attention_factor)


def _dimensions(own: Fields, fields: Fields, head_dim: int) -> int:
    part = own.number("partial_rotary_factor", fields.number("partial_rotary_factor", 1.0))
    dimensions = int(round(head_dim * part, 6))  # 80 * 0.7 is a little below 56
    if part > 1:
        raise fields.error("partial_rotary_factor", f"must be 1 or less, not {part:g}")
    if dimensions % 2 or not dimensions:
        raise fields.error("head_dim", f"must be even to be rotated, not {dimensions}")
    return dimensions


def _divided(frequencies: list[float], fields: Fields) -> list[float]:
    return _over(frequencies, fields.numbers("rope_divisors") or (1.0,) * len(frequencies), fields, "rope_divisors")


def _over(frequencies: list[float], divisors: tuple[float, ...], holder: Fields, name: str) -> list[float]:
    if len(divisors) != len(frequencies):
        raise holder.error(name, f"has {len(divisors)} values, expected {len(frequencies)}")
    return [frequency / divisor for frequency, divisor in zip(frequencies, divisors, strict=True)]


_Scaled = tuple[list[float], float]
"""Frequencies and attention factor."""


def _default(rope: _Rope) -> _Scaled:
    return rope.frequencies, 1.0


def _linear(rope: _Rope) -> _Scaled:
    factor = rope.own.number("factor")
    return [frequency / factor for frequency in rope.frequencies], 1.0


def _llama3(rope: _Rope) -> _Scaled:
    factor = rope.own.number("factor")
    low, high = rope.own.number("low_freq_factor"), rope.own.number("high_freq_factor")
    original = rope.own.number("original_max_position_embeddings")
    if low >= high:
        raise rope.own.error("low_freq_factor", f"must be below high_freq_factor, not {low:g} with {high:g}")

    def scaled(frequency: float) -> float:
        # Full turns within the original length: few turns are slowed down by factor, many are kept, between is blended.
        turns = original * frequency / (2 * math.pi)
        kept = min(max((turns - low) / (high - low), 0.0), 1.0)
        return (1.0 - kept) * frequency / factor + kept * frequency

    return [scaled(frequency) for frequency in rope.frequencies], 1.0


def _yarn(rope: _Rope) -> _Scaled:
    """Dimensions that turn often within the original length are kept, those that turn little are slowed down by the
    factor, and in between a ramp over the dimension's index blends the two."""
    own, factor, original = rope.own, rope.stretch(), rope.original()

    def dimension(turns: float) -> float:
        """The index, not whole, of the dimension that turns so often."""
        return rope.dimensions * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension(own.number("beta_fast", 32.0)), dimension(own.number("beta_slow", 1.0))
    if own.flag("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dimensions - 1)
    width = high - low or 0.001  # a step instead of a ramp
    frequencies = []
    for index, frequency in enumerate(rope.frequencies):
        slowed = min(max((index - low) / width, 0.0), 1.0)
        frequencies.append(slowed * frequency / factor + (1.0 - slowed) * frequency)
    return frequencies, _yarn_attention_factor(own, factor)


def _yarn_attention_factor(own: Fields, factor: float) -> float:
    if "attention_factor" in own:
        return own.number("attention_factor")

    def grown(strength: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * strength * math.log(factor) + 1.0

    if "mscale" in own and "mscale_all_dim" in own:
        return grown(own.number("mscale")) / grown(own.number("mscale_all_dim"))
    return grown(1.0)


def _longrope(rope: _Rope) -> _Scaled:
    own, factor, original = rope.own, rope.stretch(), rope.original()
    length = rope.fields.integer("max_model_len", rope.fields.integer("max_position_embeddings", 2048))
    name = "long_factor" if length > original else "short_factor"
    if not (divisors := own.numbers(name)):
        raise own.error(name, "is missing")
    grown = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return _over(rope.frequencies, divisors, own, name), own.number("attention_factor", grown)


_SCALINGS = {
    "default": _default,
    "linear": _linear,
    "dynamic": _default,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}

KINDS = tuple(_SCALINGS)
"""The kinds of rope that load."""

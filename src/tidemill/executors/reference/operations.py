"""The operations that act on each row alone, in float64: what graph.py says, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from tidemill.executors.reference.linear import Floats
from tidemill.graph.graph import ClampedGlu, RopeSpec

__all__ = ["ACTIVATIONS", "clamped_glu", "layer_norm", "rms_norm", "rope", "sigmoid_gate", "soft_cap"]


def rms_norm(x: Floats, weight: Floats, eps: float, heads: int = 1) -> Floats:
    """x / sqrt(mean(x^2) + eps) * weight, over each of ``heads`` equal parts of a row. x [T, width]"""
    parts = x.reshape(len(x), heads, x.shape[1] // heads)
    result: Floats = parts / np.sqrt(np.mean(parts * parts, axis=2, keepdims=True) + eps) * weight
    return result.reshape(x.shape)


def layer_norm(x: Floats, weight: Floats, bias: Floats, eps: float) -> Floats:
    """(x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * weight + bias. x [T, width]"""
    centred = x - np.mean(x, axis=1, keepdims=True)
    result: Floats = centred / np.sqrt(np.mean(centred * centred, axis=1, keepdims=True) + eps) * weight + bias
    return result


def soft_cap(x: Floats, cap: float) -> Floats:
    """cap * tanh(x / cap)"""
    result: Floats = cap * np.tanh(x / cap)
    return result


def sigmoid_gate(x: Floats, gate: Floats) -> Floats:
    """x / (1 + exp(-gate)). x [T, width], gate [T, 1]"""
    with np.errstate(over="ignore"):
        result: Floats = x / (1.0 + np.exp(-gate))
    return result


def _silu(x: Floats) -> Floats:
    """x / (1 + exp(-x))"""
    with np.errstate(over="ignore"):  # exp(-x) = inf gives 0, the limit
        result: Floats = x / (1.0 + np.exp(-x))
    return result


def _gelu_tanh(x: Floats) -> Floats:
    """x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))"""
    result: Floats = 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
    return result


def clamped_glu(gate: Floats, up: Floats, by: ClampedGlu) -> Floats:
    """(u + 1) * g / (1 + exp(-alpha * g)), g and u within the limit (g above only)"""
    g, u = np.minimum(gate, by.limit), np.clip(up, -by.limit, by.limit)
    with np.errstate(over="ignore"):
        result: Floats = (u + 1.0) * g / (1.0 + np.exp(-by.alpha * g))
    return result


def _gelu(x: Floats) -> Floats:
    """x / 2 * (1 + erf(x / sqrt(2))), as x / 2 * erfc(-x / sqrt(2)), which keeps its digits where x is negative"""
    erfc = np.fromiter((math.erfc(-value / math.sqrt(2.0)) for value in x.flat), np.float64, x.size)
    result: Floats = 0.5 * x * erfc.reshape(x.shape)
    return result


def _relu(x: Floats) -> Floats:
    """max(x, 0)"""
    result: Floats = np.maximum(x, 0.0)
    return result


ACTIVATIONS: dict[str, Callable[[Floats], Floats]] = {
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": _relu,
    "silu": _silu,
}


def rope(x: Floats, spec: RopeSpec, positions: npt.NDArray[np.int64]) -> Floats:
    """Rotate dimension i with i + r/2 by position * inv_freq[i]. x [T, heads, head_dim] -> the same shape."""
    angle = positions[:, None, None] * np.asarray(spec.inv_freq)
    cos, sin = np.cos(angle) * spec.attention_factor, np.sin(angle) * spec.attention_factor
    half = len(spec.inv_freq)
    first, second, rest = x[:, :, :half], x[:, :, half : 2 * half], x[:, :, 2 * half :]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=2)

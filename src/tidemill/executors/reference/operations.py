"""The operations that act on each row alone, in float64: what graph.py says, and nothing else."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tidemill.executors.reference.linear import Floats
from tidemill.graph.graph import RopeSpec

__all__ = ["rms_norm", "rope", "silu"]


def rms_norm(x: Floats, weight: Floats, eps: float) -> Floats:
    """x / sqrt(mean(x^2) + eps) * weight"""
    result: Floats = x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + eps) * weight
    return result


def silu(x: Floats) -> Floats:
    """x / (1 + exp(-x))"""
    with np.errstate(over="ignore"):  # exp(-x) = inf gives 0, the limit
        result: Floats = x / (1.0 + np.exp(-x))
    return result


def rope(x: Floats, spec: RopeSpec, positions: npt.NDArray[np.int64]) -> Floats:
    """Rotate dimension i with i + r/2 by position * inv_freq[i]. x [T, heads, head_dim] -> the same shape."""
    angle = positions[:, None, None] * np.asarray(spec.inv_freq)
    cos, sin = np.cos(angle) * spec.attention_factor, np.sin(angle) * spec.attention_factor
    half = len(spec.inv_freq)
    first, second, rest = x[:, :, :half], x[:, :, half : 2 * half], x[:, :, 2 * half :]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=2)

"""Tidemill: LLM inference in layers, from kernels to gateway, as one package."""

from __future__ import annotations

__version__ = "0.1.0"

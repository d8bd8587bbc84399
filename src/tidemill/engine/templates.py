"""Which template a prompt was made from, as far as its beginning tells: for estimates of how long answers will be."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Final

__all__ = ["templates_of"]

_BEGINNINGS: Final = (256, 64, 16)
"""Tokens that prompts of one template have in common: long system prompts tell more than short ones."""


def templates_of(prompt: Sequence[int], tenant: str) -> tuple[Hashable, ...]:
    """The beginnings of a prompt, the longest first, and at last what all of a tenant's have in common."""
    begun = [(tenant, tuple(prompt[:length])) for length in _BEGINNINGS if len(prompt) >= length]
    return (*begun, (tenant, ()))

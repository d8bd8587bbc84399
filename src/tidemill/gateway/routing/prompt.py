"""A prompt's token ids, and the keys of its blocks of whatever sizes replicas have."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.gateway.routing.blocks import token_blocks

__all__ = ["Prompt"]


class Prompt:
    """Immutable; keys are computed once for each size."""

    def __init__(self, tokens: Sequence[int], model: str = "") -> None:
        """``tokens``: at least one. ``model``: as the request names it, which may be an adapter's name."""
        self._tokens = tokens
        self.model = model
        self._keys: dict[tuple[int, str], tuple[int, ...]] = {}

    def __len__(self) -> int:
        return len(self._tokens)

    def keys(self, size: int, adapter: str = "") -> tuple[int, ...]:
        """Of the full blocks of ``size`` tokens, computed with an adapter; empty: with none."""
        wanted = (size, adapter)
        if wanted not in self._keys:
            self._keys[wanted] = token_blocks(self._tokens, size, salt=adapter)
        return self._keys[wanted]

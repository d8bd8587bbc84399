"""How fast an engine was: tokens per second of prompts being read, and of one answer being written alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Speed", "SpeedMeter"]

_LEAST_PROMPT = 64
"""Tokens of a step that counts as reading prompts: with fewer, weights are what it waits for."""
_LEAST_TOKENS = {"prefill": 128, "decode": 16}
"""A speed over fewer tokens says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Tokens per second of the executor's time; None: too few tokens to tell."""

    prefill: float | None
    decode: float | None
    """Of one sequence that runs alone."""


class SpeedMeter:
    """Sums over steps that are one thing or the other; steps that mix the two say nothing of either."""

    def __init__(self) -> None:
        self._tokens = {"prefill": 0, "decode": 0}
        self._seconds = {"prefill": 0.0, "decode": 0.0}

    def step(self, lengths: Sequence[int], seconds: float) -> None:
        """Count a step: tokens of each of its rows, and the time the executor took."""
        if list(lengths) == [1]:
            kind = "decode"
        elif sum(lengths) >= _LEAST_PROMPT and min(lengths) > 1:
            kind = "prefill"
        else:
            return
        self._tokens[kind] += sum(lengths)
        self._seconds[kind] += seconds

    def speed(self) -> Speed:
        """What the steps so far come to."""
        return Speed(prefill=self._rate("prefill"), decode=self._rate("decode"))

    def _rate(self, kind: str) -> float | None:
        if self._tokens[kind] < _LEAST_TOKENS[kind] or self._seconds[kind] <= 0:
            return None
        return self._tokens[kind] / self._seconds[kind]

"""Requests that an engine died of before, kept from the next one.

A prompt that was being computed each of the last times that the engine died is a suspect; after so many times it is
refused, for a while. Without that, one caller who tries again would take the engine from everybody until it is not
started any more. Prompts are remembered by a hash that is keyed in this process.
"""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from tidemill.core.clock import Clock
from tidemill.core.errors import Quarantined

__all__ = ["Quarantine"]

DEATHS: Final = 2
"""So many deaths with one prompt in the step are no accident."""
SECONDS: Final = 600.0
"""How long a prompt is a suspect after a death."""
_MOST: Final = 4096
"""Suspects that are remembered, the latest ones."""


@dataclass(slots=True)
class _Suspect:
    deaths: int
    until: float


class Quarantine:
    """Counts deaths by prompt."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._suspects: dict[bytes, _Suspect] = {}

    def died(self, prompts: Iterable[Sequence[int]]) -> None:
        """The engine died while it computed these; a prompt that is here twice counts once."""
        now = self._clock.now()
        before = {name: one for name, one in self._suspects.items() if one.until > now}
        named = {self._name(prompt) for prompt in prompts}
        for name in named:
            seen = before.pop(name, None)
            before[name] = _Suspect(1 if seen is None else seen.deaths + 1, now + SECONDS)
        self._suspects = dict(list(before.items())[-_MOST:])

    def check(self, prompt: Sequence[int]) -> None:
        """Raise Quarantined for a prompt that the engine died of too often."""
        if not self._suspects:
            return
        suspect = self._suspects.get(self._name(prompt))
        if suspect is None or suspect.deaths < DEATHS:
            return
        left = suspect.until - self._clock.now()
        if left > 0:
            raise Quarantined(
                f"the engine died {suspect.deaths} times while it computed this prompt; it is not tried again for "
                f"{left:.0f} s"
            )

    def _name(self, prompt: Sequence[int]) -> bytes:
        return blake2b(array("q", prompt).tobytes(), digest_size=16, key=self._key).digest()

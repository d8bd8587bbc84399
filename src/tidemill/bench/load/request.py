"""One request of a load: what is asked, by whom, and when."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Final

__all__ = ["DEFAULT_IDS", "LoadRequest", "Prompt"]

DEFAULT_IDS: Final = (1000, 30000)
"""Token ids that most vocabularies have, and in which control tokens are rare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt, as token ids or as text."""

    ids: array[int] | None = None
    """Token ids, exactly what the model sees."""
    text: str | None = None
    """Text, if there are no ids."""
    tokens: int
    """Tokens that the server should count, a begin-of-text token or a chat template's own included where known."""
    exact: bool = True
    """True if ``tokens`` is checked, or follows from ids; False: it is an estimate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRequest:
    """A request that a load sends."""

    index: int
    """Its place in the load, from 0."""
    prompt: Prompt
    max_tokens: int
    """Tokens to generate; end tokens are ignored where the target can do so."""
    due: float = 0.0
    """Open loop: seconds after the start. Of a later turn without ``think``, not before the turn before has ended."""
    session: str | None = None
    """Requests of a session are sent one after the other."""
    turn: int = 0
    think: float | None = None
    """Seconds after the end of the turn before; it is then sent by this and not by ``due``."""
    tenant: str | None = None
    priority: int = 0
    expected_tokens: int | None = None
    """How long the caller says its answer will be (``expected_output_tokens``); None: it does not say."""
    cancel_after: int | None = None
    """Hang up after so many tokens."""

"""Where requests wait until their grammar is compiled, so that no step waits for it.

A grammar compiles on a thread beside the loop; the loop then finds it compiled. Requests without one, or with one that
is known, pass at once: a request overtakes another only while that one's grammar is being compiled.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Protocol

from tidemill.core.errors import Overloaded, TidemillError
from tidemill.core.grammar import Grammar
from tidemill.core.tokens import EmbedRequest, TokenRequest

__all__ = ["GATE_SECONDS", "MAX_COMPILING", "Gate", "GrammarSource"]

MAX_COMPILING: Final = 256
"""Requests that may wait here; one more is refused."""
GATE_SECONDS: Final = 0.002
"""While there is nothing else to do, look this often whether a grammar is compiled."""
_WORKERS: Final = 2
"""One slow grammar does not hold up all others."""


class GrammarSource(Protocol):
    """Compiles grammars and keeps them; see ``text.grammars.Grammars``."""

    def ready(self, grammar: Grammar) -> bool: ...

    def state(self, grammar: Grammar) -> object: ...


@dataclass(frozen=True, slots=True)
class _Waiting:
    request: TokenRequest
    compiled: Future[object]


class Gate:
    """In front of one loop; used by its thread alone."""

    def __init__(self, grammars: GrammarSource | None) -> None:
        self._grammars = grammars
        self._waiting: list[_Waiting] = []
        self._workers: ThreadPoolExecutor | None = None

    def __len__(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    def passes(self, request: TokenRequest | EmbedRequest) -> bool:
        """True if there is nothing to wait for; else the request comes out of ``open`` later. Raises Overloaded."""
        grammar = request.sampling.grammar if isinstance(request, TokenRequest) else None
        if grammar is None or self._grammars is None or self._grammars.ready(grammar):
            return True
        assert isinstance(request, TokenRequest)
        if len(self._waiting) >= MAX_COMPILING:
            raise Overloaded(f"{len(self._waiting)} requests wait for their grammars to be compiled")
        if self._workers is None:
            self._workers = ThreadPoolExecutor(_WORKERS, thread_name_prefix="tidemill-grammar")
        self._waiting.append(_Waiting(request, self._workers.submit(self._grammars.state, grammar)))
        return False

    def open(self) -> list[tuple[TokenRequest, TidemillError | None]]:
        """Requests whose wait is over, in order of arrival, and why a grammar cannot be had."""
        done = [one for one in self._waiting if one.compiled.done()]
        self._waiting = [one for one in self._waiting if not one.compiled.done()] if done else self._waiting
        return [(one.request, _error(one.compiled)) for one in done]

    def drop(self, request_id: str) -> bool:
        """Forget a request; False if it does not wait here."""
        kept = [one for one in self._waiting if one.request.request_id != request_id]
        found = len(kept) < len(self._waiting)
        self._waiting = kept
        return found

    def close(self) -> None:
        """Let go of the threads; what they compile is of no use any more."""
        if self._workers is not None:
            self._workers.shutdown(wait=False, cancel_futures=True)


def _error(compiled: Future[object]) -> TidemillError | None:
    error = compiled.exception()
    if error is None or isinstance(error, TidemillError):
        return error
    return TidemillError(f"the grammar could not be compiled: {type(error).__name__}: {error}")

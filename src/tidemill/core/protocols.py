"""The two protocols everything is composed from."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from tidemill.core.adapters import AdapterSource
from tidemill.core.events import Reply
from tidemill.core.requests import AnyRequest
from tidemill.core.tokens import EmbedRequest, EngineInfo, EngineStats, TokenDelta, TokenRequest

__all__ = ["AdapterHost", "Backend", "TokenEngine"]


class TokenEngine(Protocol):
    """Token ids and options in, token deltas or vectors out. Knows nothing of text, templates or HTTP."""

    @property
    def info(self) -> EngineInfo:
        """Limits and identity; constant from start to end, restarts included."""
        ...

    def generate(self, request: TokenRequest) -> AsyncIterator[TokenDelta]:
        """Queue a request and yield deltas of all its choices as steps end, until each choice has finished.

        Raises InvalidRequest (before the first delta) for what can never be served, Overloaded if the queue is full,
        and EngineDied if the engine ends meanwhile. Closing the iterator aborts what still runs: blocks return to
        the pool within a step or two.
        """
        ...

    async def embed(self, request: EmbedRequest) -> bytes:
        """The pooled vector of a text, not normalised: ``info.embedding.width`` numbers in float32, little-endian.

        Raises what ``generate`` raises. Cancelling it aborts what still runs.
        """
        ...

    def abort(self, request_id: str, choice: int | None = None) -> None:
        """End one choice, or all, without a further delta; unknown ids are ignored."""
        ...

    def reset_cache(self, tenant: str | None = None) -> None:
        """Let no request that is queued from now on find KV blocks of before, a tenant's or (None) anybody's; never
        waits. Raises Unavailable while there is no engine."""
        ...

    def stats(self) -> EngineStats:
        """The latest snapshot; never waits."""
        ...

    async def ready(self) -> str | None:
        """None if the engine makes progress, else the reason why not, in one line."""
        ...


class AdapterHost(Protocol):
    """An engine whose adapters can be changed while it runs."""

    @property
    def adapters(self) -> tuple[AdapterSource, ...]:
        """Those that requests may name."""
        ...

    async def load_adapter(self, source: AdapterSource) -> None:
        """Let requests name an adapter from when this returns on. Raises InvalidRequest for one that cannot be loaded,
        Unavailable or EngineDied without an engine."""
        ...

    async def unload_adapter(self, name: str) -> None:
        """Let no later request name it; those that are with the engine are answered with it. Raises ModelNotFound."""
        ...


class Backend(Protocol):
    """A canonical request in; status, headers and events out. Every gateway stage wraps one and is one."""

    @property
    def models(self) -> tuple[str, ...]:
        """Names that requests may use, the first one being the default."""
        ...

    async def open(self, request: AnyRequest) -> Reply:
        """Begin an answer. Raises TidemillError for whatever is wrong before the first event."""
        ...

    async def ready(self) -> str | None:
        """None if it can take work, else the reason why not, in one line."""
        ...

"""An engine process and the backend over it, as one thing that starts and ends with the server."""

from __future__ import annotations

from tidemill.core.errors import Unavailable
from tidemill.core.events import Reply
from tidemill.core.metrics import Recorder
from tidemill.core.requests import AnyRequest
from tidemill.engine.client import ProcessEngine
from tidemill.frontend.backend import LocalBackend
from tidemill.frontend.text import Text

__all__ = ["LaunchedBackend"]


class LaunchedBackend:
    """Implements Backend and Lifetime. The engine's limits are known once it has loaded its model, so the backend
    proper is made in ``start``; until then there is only its name."""

    def __init__(self, engine: ProcessEngine, text: Text, *, model: str, recorder: Recorder | None = None) -> None:
        self._engine = engine
        self._text = text
        self._model = model
        self._recorder = recorder
        self._backend: LocalBackend | None = None

    async def start(self) -> None:
        """Start the engine process and wait for its model. Raises what stops it: ModelLoadError, DoesNotFit."""
        await self._engine.start()
        self._backend = LocalBackend(self._engine, self._text, recorder=self._recorder, adapters=self._engine)

    async def close(self) -> None:
        """End the engine process."""
        await self._engine.close()

    @property
    def models(self) -> tuple[str, ...]:
        """The model that is, or will be, loaded, and the adapters."""
        return (self._model,) if self._backend is None else self._backend.models

    async def ready(self) -> str | None:
        """None once the engine makes progress."""
        return "the model is loading" if self._backend is None else await self._backend.ready()

    async def open(self, request: AnyRequest) -> Reply:
        """See LocalBackend."""
        if self._backend is None:
            raise Unavailable("the model is loading")
        return await self._backend.open(request)

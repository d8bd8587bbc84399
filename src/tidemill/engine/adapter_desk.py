"""Where adapters are read while the loop goes on: files on a thread beside it, the result at the end of a turn."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from tidemill.core.adapters import AdapterSource
from tidemill.core.errors import InvalidRequest, ModelLoadError, ModelNotFound, TidemillError
from tidemill.engine.adapters import Adapters
from tidemill.graph.lora import Adapter

__all__ = ["AdapterDesk", "AdapterOutcome"]


@dataclass(frozen=True, slots=True)
class AdapterOutcome:
    """What became of a request to load or unload an adapter."""

    ticket: int
    error: TidemillError | None = None


@dataclass(frozen=True, slots=True)
class _Reading:
    ticket: int
    source: AdapterSource
    adapter: Future[Adapter]


class AdapterDesk:
    """In front of one loop; used by its thread alone."""

    def __init__(self, adapters: Adapters | None) -> None:
        self._adapters = adapters
        self._reading: list[_Reading] = []
        self._outcomes: list[AdapterOutcome] = []
        self._reader: ThreadPoolExecutor | None = None

    def __len__(self) -> int:
        """Adapters that are being read."""
        return len(self._reading)

    def load(self, ticket: int, source: AdapterSource) -> None:
        """Begin to read an adapter; its outcome comes later."""
        try:
            if self._adapters is None:
                raise InvalidRequest("adapters are off: start the server with --max-loras", param="lora_name")
            self._adapters.check(source.name)
        except TidemillError as error:
            self._outcomes.append(AdapterOutcome(ticket, error))
            return
        if self._reader is None:
            self._reader = ThreadPoolExecutor(1, thread_name_prefix="tidemill-adapter")
        self._reading.append(_Reading(ticket, source, self._reader.submit(self._adapters.read, source)))

    def unload(self, ticket: int, name: str) -> None:
        """Let no later request name an adapter."""
        try:
            if self._adapters is None:
                raise ModelNotFound(f"there is no adapter {name!r}: adapters are off", param="lora_name")
            self._adapters.remove(name)
            self._outcomes.append(AdapterOutcome(ticket))
        except TidemillError as error:
            self._outcomes.append(AdapterOutcome(ticket, error))

    def outcomes(self) -> list[AdapterOutcome]:
        """What was decided since the last call. An adapter that has been read is taken up here, between two steps."""
        done = [one for one in self._reading if one.adapter.done()]
        self._reading = [one for one in self._reading if not one.adapter.done()] if done else self._reading
        self._outcomes += [AdapterOutcome(one.ticket, self._taken(one)) for one in done]
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def close(self) -> None:
        """Let go of the thread."""
        if self._reader is not None:
            self._reader.shutdown(wait=False, cancel_futures=True)

    def _taken(self, one: _Reading) -> TidemillError | None:
        """Add an adapter that has been read; the reason if that cannot be."""
        assert self._adapters is not None
        try:
            self._adapters.add(one.source.name, one.adapter.result())
        except ModelLoadError as error:
            return InvalidRequest(error.message, param="lora_path")
        except TidemillError as error:
            return error
        except (MemoryError, OSError) as error:
            return InvalidRequest(
                f"the adapter could not be loaded: {type(error).__name__}: {error}", param="lora_path"
            )
        return None

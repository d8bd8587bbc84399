"""The adapters of an engine: which there are by name, and who uses them.

    add     the executor takes it under a fresh number; requests may name it
    remove  requests may not name it any more; those that are here go on with it, and the last one's end frees it

A number is never used again, so that KV blocks computed with an adapter are not found by another of the same name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from tidemill.core.adapters import AdapterSource, name_problem
from tidemill.core.errors import InvalidRequest, ModelNotFound
from tidemill.executors.protocol import Executor
from tidemill.graph.lora import Adapter, AdapterNumber
from tidemill.scheduling.sequence import SequenceState

__all__ = ["NO_ADAPTER", "Adapters"]

NO_ADAPTER = AdapterNumber(0)

_LIVE = {SequenceState.RUNNING: "running", SequenceState.WAITING: "waiting"}


class Adapters:
    """Used by the loop's thread, but for ``read``."""

    def __init__(self, executor: Executor, read: Callable[[AdapterSource], Adapter], *, most: int, model: str) -> None:
        """``read`` gives an adapter that fits the model, or raises ModelLoadError; ``most`` can be loaded at once, with
        those that are still in use though they were removed; ``model``: the base model's name."""
        self.read = read
        self.most = most
        self._executor = executor
        self._model = model
        self._next = 1
        self._numbers: dict[str, AdapterNumber] = {}
        self._names: dict[AdapterNumber, str] = {}
        self._users: Counter[AdapterNumber] = Counter()

    @property
    def names(self) -> tuple[str, ...]:
        """Those that requests may name."""
        return tuple(self._numbers)

    def check(self, name: str) -> None:
        """Raise InvalidRequest if an adapter of this name cannot be added now."""
        if (problem := name_problem(name)) is not None:
            raise InvalidRequest(problem, param="lora_name")
        if name == self._model or name in self._numbers:
            raise InvalidRequest(
                f"there is a model {name!r} already; unload it, or choose another name", param="lora_name"
            )
        if len(self._names) >= self.most:
            leaving = len(self._names) - len(self._numbers)
            still = f", {leaving} of which answer their last requests" if leaving else ""
            raise InvalidRequest(
                f"{len(self._names)} adapters are loaded{still}; max_loras allows {self.most}", param="lora_name"
            )

    def add(self, name: str, adapter: Adapter) -> None:
        """Let requests name an adapter. Raises InvalidRequest as ``check`` does."""
        self.check(name)
        number = AdapterNumber(self._next)
        self._executor.add_adapter(number, adapter)
        self._next += 1
        self._numbers[name] = number
        self._names[number] = name

    def remove(self, name: str) -> None:
        """Let no later request name it. Raises ModelNotFound for one that is not there."""
        number = self.number(name, param="lora_name")
        del self._numbers[name]
        self._free(number)

    def number(self, name: str, *, param: str = "model") -> AdapterNumber:
        """What plans call an adapter; no name: none. Raises ModelNotFound."""
        if not name:
            return NO_ADAPTER
        if name not in self._numbers:
            there = ", ".join(self._numbers) or "none"
            raise ModelNotFound(f"there is no adapter {name!r}; loaded: {there}", param=param)
        return self._numbers[name]

    def name(self, number: AdapterNumber) -> str:
        """The name under which an adapter that is in use was added."""
        return self._names[number]

    def hold(self, number: AdapterNumber) -> None:
        """One more sequence uses it."""
        if number:
            self._users[number] += 1

    def release(self, number: AdapterNumber) -> None:
        """A sequence that used it has ended."""
        if number:
            self._users[number] -= 1
            if self._numbers.get(self._names[number]) != number:
                self._free(number)

    def usage(self, users: Iterable[tuple[AdapterNumber, SequenceState]]) -> Mapping[str, Mapping[str, int]]:
        """Of each adapter that can be named or is in use: how many sequences with it are running and waiting."""
        counts = {name: dict.fromkeys(_LIVE.values(), 0) for name in (*self._numbers, *self._names.values())}
        for number, state in users:
            if number and state in _LIVE:
                counts[self._names[number]][_LIVE[state]] += 1
        return counts

    def _free(self, number: AdapterNumber) -> None:
        if not self._users[number]:
            del self._users[number]
            del self._names[number]
            self._executor.drop_adapter(number)

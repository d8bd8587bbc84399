"""One turn of an engine loop, whoever runs it: commands in, one step, what it gave out."""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.core.errors import TidemillError
from tidemill.core.tokens import EmbedRequest, TokenRequest
from tidemill.engine.adapter_desk import AdapterDesk, AdapterOutcome
from tidemill.engine.gate import GATE_SECONDS, Gate
from tidemill.engine.loop import EngineLoop
from tidemill.engine.wire import (
    Abort,
    AdapterDone,
    Change,
    Command,
    Failure,
    LoadAdapter,
    Outbox,
    Reject,
    ResetCache,
    UnloadAdapter,
)

__all__ = ["STATS_SECONDS", "Turns"]

STATS_SECONDS = 0.05
"""A snapshot of the counters goes along this often while there is work, and always when there is none."""


_LEAST_EXPIRY = 0.01
"""Blocks whose time is over together are dropped together."""


class Turns:
    """A loop, and the gate in front of it. Used by one thread."""

    def __init__(self, loop: EngineLoop) -> None:
        self._loop = loop
        self._gate = Gate(loop.grammars)
        self._desk = AdapterDesk(loop.adapters)
        self._rejects: list[Reject] = []

    @property
    def pause(self) -> float | None:
        """How long to wait for commands before the next turn, in seconds; None: until one comes."""
        gate = GATE_SECONDS if len(self._gate) or len(self._desk) else None
        next_work = self._loop.idle_seconds if self._loop.has_work else self._next_expiry
        return min((one for one in (gate, next_work) if one is not None), default=None)

    @property
    def _next_expiry(self) -> float | None:
        seconds = self._loop.expiry_seconds
        return None if seconds is None else max(seconds, _LEAST_EXPIRY)

    def turn(self, commands: Iterable[Command], *, stats: bool = True) -> Outbox:
        """Apply the commands in their order, then run one step. A request that is refused is a Reject, not an error;
        what ``step`` raises is raised. ``stats``: take a snapshot also while there is work left."""
        for command in commands:
            if isinstance(command, Abort):
                if command.choice is not None or not self._gate.drop(command.request_id):
                    self._loop.abort(command.request_id, command.choice)
            elif isinstance(command, ResetCache):
                self._loop.reset_cache(command.tenant)
            elif isinstance(command, Change):
                self._loop.change(max_waiting=command.max_waiting, prefix_cache_ttl=command.prefix_cache_ttl)
            elif isinstance(command, LoadAdapter):
                self._desk.load(command.ticket, command.source)
            elif isinstance(command, UnloadAdapter):
                self._desk.unload(command.ticket, command.name)
            else:
                self._add(command.request)
        for request, error in self._gate.open():
            self._enter(request, error)
        adapters = [_done(outcome) for outcome in self._desk.outcomes()]
        deltas = self._loop.step()
        rejects, self._rejects = self._rejects, []
        rejects += [Reject(request_id, Failure.of(error)) for request_id, error in self._loop.refusals()]
        due = stats or not self._loop.has_work
        return Outbox(deltas=deltas, rejects=rejects, stats=self._loop.stats() if due else None, adapters=adapters)

    def close(self) -> None:
        """End what runs beside the loop."""
        self._gate.close()
        self._desk.close()

    def _add(self, request: TokenRequest | EmbedRequest) -> None:
        try:
            if self._gate.passes(request):
                self._loop.add(request)
        except TidemillError as error:
            self._rejects.append(Reject(request.request_id, Failure.of(error)))

    def _enter(self, request: TokenRequest, error: TidemillError | None) -> None:
        try:
            if error is not None:
                raise error
            self._loop.add(request)
        except TidemillError as refusal:
            self._rejects.append(Reject(request.request_id, Failure.of(refusal)))


def _done(outcome: AdapterOutcome) -> AdapterDone:
    return AdapterDone(outcome.ticket, None if outcome.error is None else Failure.of(outcome.error))

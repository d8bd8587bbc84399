"""Requests of one session go where the session was, where that is nearly as good as anywhere."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

from tidemill.core.clock import Clock
from tidemill.gateway.routing.choice import Choice, Policy, Random
from tidemill.gateway.routing.replica import Replica
from tidemill.gateway.routing.speed import PRESUMED
from tidemill.gateway.routing.work import Work

__all__ = ["SessionAffinity"]


class SessionAffinity:
    """A policy around a policy. Remembers at most ``most`` sessions, each for ``seconds`` since its last request."""

    def __init__(
        self, inner: Policy, clock: Clock, *, patience: float = 1.0, seconds: float = 1800.0, most: int = 100_000
    ) -> None:
        """``patience``: seconds of queue for which a session stays where it is."""
        self._inner = inner
        self._clock = clock
        self._patience = patience
        self._seconds = seconds
        self._most = most
        self._sessions: OrderedDict[tuple[str, str], tuple[str, float]] = OrderedDict()

    def choose(self, work: Work, replicas: Sequence[Replica], random: Random) -> Choice:
        """The session's replica, unless it may not take the request or is busy; then the inner policy's, which is the
        session's from now on."""
        if work.session is None:
            return self._inner.choose(work, replicas, random)
        key, now = (work.tenant, work.session), self._clock.now()
        name, at = self._sessions.get(key, ("", 0.0))
        usual = next((one for one in replicas if one.name == name), None) if now - at <= self._seconds else None
        if usual is not None and usual.queue_seconds(usual.speed.pace(PRESUMED)) <= self._patience:
            choice = Choice(replica=usual, reason="where its session is")
        else:
            choice = self._inner.choose(work, replicas, random)
            if usual is not None:
                choice = replace(choice, reason=f"{choice.reason}; its session's replica {name} is busy")
        self._sessions[key] = (choice.replica.name, now)
        self._sessions.move_to_end(key)
        while len(self._sessions) > self._most:
            self._sessions.popitem(last=False)
        return choice

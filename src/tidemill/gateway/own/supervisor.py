"""All engines that the gateway starts itself, within what memory and money there are."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from tidemill.core.clock import Clock
from tidemill.core.errors import NotFound
from tidemill.gateway.config import GatewayConfig
from tidemill.gateway.own.child import tethered
from tidemill.gateway.own.group import Group, Run
from tidemill.gateway.replica_source import Offer
from tidemill.gateway.upstream import Upstream

__all__ = ["Supervisor"]

_log = logging.getLogger(__name__)
_EVERY: Final = 0.5
"""Seconds between two looks at the load."""
_UNBOUNDED: Final = 10**6


class Supervisor:
    """Implements ReplicaSource."""

    def __init__(self, config: GatewayConfig, clock: Clock, *, run: Run = tethered, every: float = _EVERY) -> None:
        self._config = config
        self._clock = clock
        self._run = run
        self._every = every
        self.groups: dict[str, Group] = {}
        self._former: list[Group] = []
        """Of which the settings know nothing any more; they end what they have."""
        self._upstreams: Sequence[Upstream] = ()
        self._offer: Offer | None = None
        self.stopping: Callable[[], bool] = lambda: False
        """Whether the gateway is ending: engines that end then were told to, and none is started in their place."""
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """See ReplicaSource."""
        return "own engines"

    async def start(self, offer: Offer) -> None:
        """Start the engines; returns when each group has one that is ready, or one that has failed."""
        self._offer = offer
        self._exchange(self._config)
        self._task = asyncio.create_task(self._watch())
        waiting = set(self.groups)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._config.starting.seconds):
                while waiting:
                    await asyncio.sleep(self._every / 5)
                    waiting -= {name for name, one in self.groups.items() if one.count("ready") or one.crashes}

    async def close(self) -> None:
        """See ReplicaSource."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.gather(*(group.close() for group in (*self.groups.values(), *self._former)))

    def check(self, config: GatewayConfig) -> None:
        """See ReplicaSource; what could be wrong has been looked at when the settings were read."""

    def change(self, config: GatewayConfig) -> None:
        """See ReplicaSource."""
        self._exchange(config)

    def expects(self, model: str) -> str:
        """See ReplicaSource."""
        for group in self.groups.values():
            if group.config.served_name == model:
                return group.problem or "its engine is starting"
        return ""

    def restart(self, name: str | None) -> list[str]:
        """Exchange the engines of a group, or of all; their names. Raises NotFound."""
        if name is not None and name not in self.groups:
            raise NotFound(f"there are no engines {name[:100]!r}; there are {', '.join(self.groups) or 'none'}")
        chosen = [group for key, group in self.groups.items() if name in (None, key)]
        for group in chosen:
            group.restart()
        self._wake.set()
        return [group.config.name for group in chosen]

    def shown(self) -> list[dict[str, Any]]:
        """As JSON."""
        return [group.shown() for group in self.groups.values()]

    def _exchange(self, config: GatewayConfig) -> None:
        self._config = config
        wanted = {own.name: own for own in config.engines}
        for name in [name for name in self.groups if name not in wanted]:
            group = self.groups.pop(name)
            group.dissolve()
            self._former.append(group)
        for name, own in wanted.items():
            if name in self.groups:
                self.groups[name].change(own, config.starting)
            else:
                self.groups[name] = Group(own, config.starting, self._clock, self._wake.set, run=self._run)
        self._wake.set()

    async def _watch(self) -> None:
        while True:
            try:
                await self._look()
            except Exception:  # engines have to be looked after whatever happens
                _log.exception("looking after the engines failed")
            with suppress(TimeoutError):
                async with asyncio.timeout(self._every):
                    await self._wake.wait()
            self._wake.clear()

    async def _look(self) -> None:
        for group in (*self.groups.values(), *self._former):
            upstreams = {one.name: one for one in self._upstreams}
            await group.look(upstreams, self._affordable(group), stopping=self.stopping())
        for group in [group for group in self._former if not group.children]:
            self._former.remove(group)
            await group.close()
        assert self._offer is not None
        replicas = [one for group in (*self.groups.values(), *self._former) for one in group.replicas]
        self._upstreams = self._offer(replicas)

    def _affordable(self, group: Group) -> int:
        """How many engines of a group there may be beside those of the others."""
        most = _UNBOUNDED
        limits, own = self._config.limits, group.config
        others = [other for other in (*self.groups.values(), *self._former) if other is not group]
        if limits.memory_megabytes is not None:
            taken = sum((other.config.memory_megabytes or 0) * self._kept(other) for other in others)
            most = min(most, _fits(limits.memory_megabytes - taken, own.memory_megabytes or 0))
        if limits.cost_per_hour is not None:
            taken = sum(other.config.cost_per_hour * self._kept(other) for other in others)
            most = min(most, _fits(limits.cost_per_hour - taken, own.cost_per_hour))
        return most

    def _kept(self, group: Group) -> int:
        """Engines whose room is not the others': those that there are, and the fewest that there have to be, also
        while one that ended is yet to be replaced."""
        here = len(group.children)
        return here if group in self._former else max(here, group.config.replicas.min)


def _fits(left: float, each: float) -> int:
    return _UNBOUNDED if each <= 0 else max(0, int((left + 1e-9) // each))

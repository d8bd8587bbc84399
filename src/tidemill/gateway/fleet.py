"""The replicas of now, looked at again and again, and exchanged when the settings or a source of replicas change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from functools import partial
from random import Random

from tidemill.core.clock import Clock
from tidemill.core.config import ServerConfig
from tidemill.core.errors import ConfigError
from tidemill.gateway.cache.answer_cache import AnswerCache
from tidemill.gateway.config import GatewayConfig, ReplicaConfig
from tidemill.gateway.decisions import Decisions
from tidemill.gateway.discovery.discovery import Discovery
from tidemill.gateway.own.supervisor import Supervisor
from tidemill.gateway.replica_source import ReplicaSource
from tidemill.gateway.router import Router
from tidemill.gateway.shared.answers import SharedAnswers
from tidemill.gateway.shared.limits import SharedLimits
from tidemill.gateway.shared.store import open_store
from tidemill.gateway.upstream import Upstream
from tidemill.serve.listener import check_config
from tidemill.serve.live_config import LiveConfig
from tidemill.serve.reload import LIVE_SERVER

__all__ = ["Fleet"]

_log = logging.getLogger(__name__)

_FILE = "the file"
"""The source of the replicas that the settings list."""


class Fleet:
    """Implements Lifetime: looks and sources begin with the server and end with it."""

    def __init__(
        self,
        config: GatewayConfig,
        clock: Clock,
        *,
        read: Callable[[], GatewayConfig] | None = None,
        supervisor: Supervisor | None = None,
        discovery: Discovery | None = None,
        sources: Sequence[ReplicaSource] = (),
        seed: int | None = None,
    ) -> None:
        """``read`` gives the settings again. ``supervisor`` starts engines,
        ``discovery`` finds others and ``sources`` have yet others, besides the replicas that the settings list. Raises
        ConfigError."""
        self.config = config
        self.live = LiveConfig(config.door)
        self.router = Router(config, clock, Random(seed))
        self.decisions = Decisions(config.decisions)
        self.store = None if config.redis is None else open_store(config.redis, clock)
        self.limits = SharedLimits(self.store) if self.store is not None and self.store.config.limits else None
        self.answers = SharedAnswers(self.store, config) if self.store is not None and self.store.config.cache else None
        self.cache = AnswerCache(config.cache, clock, self.answers)
        self.clock = clock
        self._read = read
        self.supervisor = supervisor
        self.discovery = discovery
        self.sources: Sequence[ReplicaSource] = [
            *(one for one in (supervisor, discovery) if one is not None),
            *sources,
        ]
        self.router.expects = self._expects
        self._offered: dict[str, tuple[ReplicaConfig, ...]] = {_FILE: config.replicas}
        """By source. Of two replicas with one name, that of the earlier source counts."""
        self._looks: dict[str, asyncio.Task[None]] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._running = False
        self.upstreams = self.router.upstreams
        """The same list for as long as there is a gateway."""
        self.upstreams += self._made(self._offered, config)

    async def start(self) -> None:
        """Start the sources and look at every replica once, so that what is known is known before the first request;
        then go on."""
        for source in self.sources:
            await source.start(partial(self.offer, source.name))
        await asyncio.gather(*(upstream.look() for upstream in self.upstreams))
        self._running = True
        self._watch()

    async def close(self) -> None:
        """End the sources, the looks and all connections."""
        self._running = False
        await asyncio.gather(*(source.close() for source in self.sources), return_exceptions=True)
        tasks = [*self._looks.values(), *self._leaving]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._looks.clear()
        for upstream in self.upstreams:
            await upstream.close()
        for one in (self.limits, self.answers, self.store):
            if one is not None:
                await one.close()

    def reload(self) -> None:
        """Read the settings again and take them up, all or nothing. Raises ConfigError; the log says what came."""
        assert self._read is not None, "there is nothing to read"
        try:
            config = self._read()
            door = self._door(config.door)
            for source in self.sources:
                source.check(config)
            offered = {**self._offered, _FILE: config.replicas}
            made = self._made(offered, config)
        except ConfigError as error:
            _log.error("the settings are as they were: %s", error.message)
            raise
        others = config.replicas != self.config.replicas
        if config.redis != self.config.redis:
            _log.warning("only a new process takes up: redis")
        self.config = config
        self._exchange(offered, made)
        self.router.change(config)
        self.decisions.resize(config.decisions)
        self.cache.change(config.cache, empty=others)
        if self.answers is not None:
            self.answers.change(config)
        self.live.change(door)
        for source in self.sources:
            source.change(config)
        _log.warning("read the settings again; replicas: %s", ", ".join(one.name for one in made))

    def offer(self, source: str, replicas: Sequence[ReplicaConfig]) -> list[Upstream]:
        """These are all the replicas that a source has from now on: new ones are looked at and used, those it had
        before and has no more get nothing new and end what they have, and ``drain`` takes one out of use. Returns
        theirs; one whose name another source has is left out, with a word in the log. To be called on the loop. Raises
        ConfigError for a key that is not there, having changed nothing."""
        offered = {**self._offered, source: tuple(replicas)}
        if offered != self._offered:
            self._exchange(offered, self._made(offered, self.config))
        return [one for one in self.upstreams if one.own in replicas]

    def _expects(self, model: str) -> str:
        return next((why for source in self.sources if (why := source.expects(model))), "")

    def _exchange(self, offered: dict[str, tuple[ReplicaConfig, ...]], made: list[Upstream]) -> None:
        gone = [one for one in self.upstreams if one not in made]
        self._offered = offered
        self.upstreams[:] = made
        for upstream in gone:
            self._let_go(upstream)
        if self._running:
            self._watch()

    @property
    def can_reload(self) -> bool:
        """Whether there is something to read."""
        return self._read is not None

    def _door(self, new: ServerConfig) -> ServerConfig:
        """The door's settings of now with what of the new ones can change."""
        now = self.live.now
        fixed = [item.name for item in fields(new) if getattr(now, item.name) != getattr(new, item.name)]
        if late := [name for name in fixed if name not in LIVE_SERVER]:
            _log.warning("only a new process takes up: %s", ", ".join(f"server.{name}" for name in late))
        taken = replace(now, **{name: getattr(new, name) for name in fixed if name in LIVE_SERVER})
        check_config(taken)
        return taken

    def _made(self, offered: Mapping[str, Sequence[ReplicaConfig]], config: GatewayConfig) -> list[Upstream]:
        """The upstreams of what is offered: one of before where name, URL and engine are the same."""
        before = {(one.name, one.own.url, one.own.engine): one for one in self.upstreams}
        chosen = _by_name(offered)
        made = [before.get((own.name, own.url, own.engine)) or Upstream(own, config, self.clock) for own in chosen]
        for upstream, own in zip(made, chosen, strict=True):
            upstream.change(own, config)
        return made

    def _watch(self) -> None:
        """A task for every upstream, and none for those that are gone."""
        wanted = {f"{one.name} {id(one)}": one for one in self.upstreams}
        for key in [key for key in self._looks if key not in wanted]:
            self._looks.pop(key).cancel()
        for key, upstream in wanted.items():
            if key not in self._looks:
                self._looks[key] = asyncio.create_task(self._look_again(upstream))

    async def _look_again(self, upstream: Upstream) -> None:
        numbers = Random()
        if not upstream.looked_at:
            await upstream.look()
        while True:
            pause = self.config.probes.interval_seconds
            await asyncio.sleep(pause * (0.9 + 0.2 * numbers.random()))  # not all at once
            before = upstream.healthy
            await upstream.look()
            if upstream.healthy != before:
                _log.warning(
                    "%s %s", upstream.name, "is well" if upstream.healthy else f"is not well: {upstream.problem}"
                )

    def _let_go(self, upstream: Upstream) -> None:
        """It gets nothing new; its connections are closed when what is in flight has ended."""
        upstream.draining = True
        self.router.outliers.forget(upstream.name)
        with suppress(RuntimeError):  # no loop: nothing is in flight
            task = asyncio.get_running_loop().create_task(_closed_when_idle(upstream))
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)


def _by_name(offered: Mapping[str, Sequence[ReplicaConfig]]) -> list[ReplicaConfig]:
    """One replica for each name."""
    chosen: dict[str, ReplicaConfig] = {}
    for source, replicas in offered.items():
        for own in replicas:
            if chosen.setdefault(own.name, own) is not own:
                _log.warning("%s: there is a replica %s already; that at %s is left out", source, own.name, own.url)
    return list(chosen.values())


async def _closed_when_idle(upstream: Upstream) -> None:
    await upstream.idle()
    await upstream.close()

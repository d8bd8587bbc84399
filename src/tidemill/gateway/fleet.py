"""The replicas of now, looked at again and again, and exchanged when the settings change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, replace
from random import Random

from tidemill.core.clock import Clock
from tidemill.core.config import ServerConfig
from tidemill.core.errors import ConfigError
from tidemill.gateway.cache.answer_cache import AnswerCache
from tidemill.gateway.config import GatewayConfig
from tidemill.gateway.decisions import Decisions
from tidemill.gateway.router import Router
from tidemill.gateway.upstream import Upstream
from tidemill.serve.listener import check_config
from tidemill.serve.live_config import LiveConfig
from tidemill.serve.reload import LIVE_SERVER

__all__ = ["Fleet"]

_log = logging.getLogger(__name__)


class Fleet:
    """Implements Lifetime: looks begin with the server and end with it."""

    def __init__(
        self,
        config: GatewayConfig,
        clock: Clock,
        *,
        read: Callable[[], GatewayConfig] | None = None,
        seed: int | None = None,
    ) -> None:
        """``read`` gives the settings again. Raises ConfigError."""
        self.config = config
        self.live = LiveConfig(config.door)
        self.router = Router(config, clock, Random(seed))
        self.decisions = Decisions(config.decisions)
        self.cache = AnswerCache(config.cache, clock)
        self.clock = clock
        self._read = read
        self._looks: dict[str, asyncio.Task[None]] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._running = False
        self.upstreams = self.router.upstreams
        """The same list for as long as there is a gateway."""
        self.upstreams += [Upstream(own, config, clock) for own in config.replicas]

    async def start(self) -> None:
        """Look at every replica once, so that what is known is known before the first request; then go on."""
        await asyncio.gather(*(upstream.look() for upstream in self.upstreams))
        self._running = True
        self._watch()

    async def close(self) -> None:
        """End the looks and all connections."""
        self._running = False
        tasks = [*self._looks.values(), *self._leaving]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._looks.clear()
        for upstream in self.upstreams:
            await upstream.close()

    def reload(self) -> None:
        """Read the settings again and take them up, all or nothing. Raises ConfigError; the log says what came."""
        assert self._read is not None, "there is nothing to read"
        try:
            config = self._read()
            door = self._door(config.door)
            made = self._made(config)
        except ConfigError as error:
            _log.error("the settings are as they were: %s", error.message)
            raise
        others = config.replicas != self.config.replicas
        gone = [one for one in self.upstreams if one not in made]
        self.config = config
        self.upstreams[:] = made
        self.router.change(config)
        self.decisions.resize(config.decisions)
        self.cache.change(config.cache, empty=others)
        self.live.change(door)
        for upstream in gone:
            self._let_go(upstream)
        if self._running:
            self._watch()
        _log.warning("read the settings again; replicas: %s", ", ".join(one.name for one in made))

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

    def _made(self, config: GatewayConfig) -> list[Upstream]:
        """The upstreams of new settings: one of before where name, URL and engine are the same."""
        before = {(one.name, one.own.url, one.own.engine): one for one in self.upstreams}
        made = [
            before.get((own.name, own.url, own.engine)) or Upstream(own, config, self.clock) for own in config.replicas
        ]
        for upstream, own in zip(made, config.replicas, strict=True):
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


async def _closed_when_idle(upstream: Upstream) -> None:
    await upstream.idle()
    await upstream.close()

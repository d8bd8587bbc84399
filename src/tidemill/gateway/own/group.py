"""Alike engines of one model: as many as the load asks for, replaced when they end, exchanged when out of date."""

from __future__ import annotations

import asyncio
import json
import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tidemill.core.clock import Clock
from tidemill.core.settings import PATHS
from tidemill.gateway.config import OwnEngineConfig, ReplicaConfig, StartingConfig
from tidemill.gateway.own.autoscaler import Autoscaler, ScaleRules
from tidemill.gateway.own.child import Child, tethered
from tidemill.gateway.upstream import Upstream

__all__ = ["Group"]

_log = logging.getLogger(__name__)
Run = Callable[[Sequence[str]], Sequence[str]]
"""The command for arguments of ``tidemill``."""
_EARLY: Final = 30.0
"""Seconds: an engine that lived longer than this did not end because it could not start."""


class Group:
    """Belongs to one event loop."""

    def __init__(
        self,
        config: OwnEngineConfig,
        starting: StartingConfig,
        clock: Clock,
        changed: Callable[[], None],
        *,
        run: Run = tethered,
    ) -> None:
        """``changed`` is called when engines have come, gone or become ready."""
        self.config = config
        self._starting = starting
        self._clock = clock
        self._changed = changed
        self._run = run
        self._scaler = Autoscaler(_rules(config), clock)
        self.children: list[Child] = []
        self._old: set[Child] = set()
        """Those that are to be replaced."""
        self._leaving: dict[Child, asyncio.Task[None]] = {}
        self.starts = 0
        self.crashes = 0
        self._failures = 0
        """In a row."""
        self._dissolved = False
        self._not_before = 0.0
        self.problem = ""
        """Why the last one ended, until one is ready again."""
        self._folder = tempfile.TemporaryDirectory(prefix="tidemill-")

    # --- what there is

    @property
    def wanted(self) -> int:
        """How many the load asks for."""
        return self._scaler.wanted

    @property
    def replicas(self) -> list[ReplicaConfig]:
        """Those that are up, for the fleet: one that leaves gets nothing new."""
        config = self.config
        return [
            ReplicaConfig(
                name=child.name,
                url=f"{child.url}/v1",
                engine="tidemill",
                kv_events=f"ipc://{self._events(child.name)}" if config.kv_events else None,
                kv_events_replay=f"ipc://{self._events(child.name)}-replay" if config.kv_events else None,
                models=(config.served_name,),
                weight=config.weight,
                labels={**config.labels, "group": config.name, "pid": str(child.pid)},
                drain=child in self._leaving or child.state != "ready",
            )
            for child in self.children
            if child.url and child.state != "ended"
        ]

    def count(self, state: str) -> int:
        """Engines that are starting, ready or draining."""
        return sum(self._state(child) == state for child in self.children)

    def _state(self, child: Child) -> str:
        return "draining" if child in self._leaving else child.state

    def shown(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "name": self.config.name,
            "model": self.config.model,
            "replicas": {"min": self.config.replicas.min, "max": self.config.replicas.max},
            "wanted": self.wanted,
            "starts": self.starts,
            "crashes": self.crashes,
            "problem": self.problem or None,
            "engines": [
                {
                    "name": child.name,
                    "pid": child.pid,
                    "state": self._state(child),
                    "url": child.url or None,
                    "replaced_soon": child in self._old,
                }
                for child in self.children
            ],
        }

    # --- what becomes of it

    def change(self, config: OwnEngineConfig, starting: StartingConfig) -> None:
        """Other settings. Engines that were started with others are exchanged one by one."""
        before = self.config
        if _needs(config) != _needs(before):
            self.restart()
        self.config, self._starting = config, starting
        self._scaler.change(_rules(config))

    def restart(self) -> None:
        """Exchange every engine, one by one, each new one before the old one goes if there may be one more."""
        self._old.update(child for child in self.children if child.state != "ended")
        self._failures, self._not_before = 0, 0.0

    def dissolve(self) -> None:
        """End all engines as soon as they have ended what they have begun."""
        self._dissolved = True

    async def look(self, upstreams: Mapping[str, Upstream], affordable: int, *, stopping: bool = False) -> None:
        """Start and end engines as the load, the settings and what is left of the limits want it. ``affordable``: how
        many this group may have in all. ``stopping``: the gateway is, and only takes note of those that end."""
        self._bury(stopping=stopping)
        if self._dissolved:
            for child in [child for child in self.children if child not in self._leaving]:
                self._let_go(child, upstreams)
            return
        if stopping:
            return
        ready, starting = self.count("ready"), self.count("starting")
        mine = [upstreams[child.name] for child in self.children if child.state == "ready" and child.name in upstreams]
        well = [one for one in mine if one.healthy and not one.draining]  # others get nothing, so nothing waits there
        wanted = self._scaler.look(
            ready=len(well),
            starting=starting,
            queue_seconds=min((one.replica.queue_seconds(one.replica.pace) for one in well), default=0.0),
            in_flight=sum(one.replica.in_flight for one in mine),
            affordable=affordable,
        )
        here = ready + starting
        self._give_up_on_slow_starts()
        self._give_up_on_unwell(upstreams)
        staying_old = [child for child in self.children if child in self._old and child not in self._leaving]
        if here < wanted:
            await self._start(len(self.children) < affordable)
        elif here > wanted:
            self._spare_one(mine, upstreams, wanted, only_ready=bool(staying_old))
        elif here == wanted and not starting and staying_old and not self._leaving:
            if len(self.children) < affordable:
                await self._start(True)
            else:
                self._let_go(staying_old[0], upstreams)

    async def close(self) -> None:
        """End all of them."""
        for task in self._leaving.values():
            task.cancel()
        await asyncio.gather(*(child.end(self._starting.stop_seconds) for child in self.children))
        self._folder.cleanup()

    def _spare_one(
        self, mine: Sequence[Upstream], upstreams: Mapping[str, Upstream], wanted: int, *, only_ready: bool
    ) -> None:
        """Let go of one that is out of date, else one that does not answer, else the one with the least to do, else
        the newest; unless fewer than are wanted would then answer. ``only_ready``: one that starts is to replace
        another."""
        load = {one.name: one.replica.in_flight for one in mine}
        well = {one.name for one in mine if one.healthy}
        staying = [child for child in self.children if child not in self._leaving and child.state != "ended"]
        if only_ready:
            staying = [child for child in staying if child.state == "ready"]
        spared = min(
            staying,
            key=lambda child: (child not in self._old, child.name in well, load.get(child.name, 0), -child.began),
        )
        if len(well - {spared.name}) >= wanted or spared.state == "starting":
            self._let_go(spared, upstreams)

    def _let_go(self, child: Child, upstreams: Mapping[str, Upstream]) -> None:
        _log.warning("%s: %s is let go", self.config.name, child.name)
        upstream = upstreams.get(child.name)
        if upstream is not None:
            upstream.draining = True  # at once: it is offered as such only after other groups have been looked at
        self._leaving[child] = asyncio.create_task(self._leave(child, upstream))
        self._changed()  # it gets nothing new

    async def _leave(self, child: Child, upstream: Upstream | None) -> None:
        if upstream is not None:
            await upstream.idle()
        await child.end(self._starting.stop_seconds)

    async def _start(self, allowed: bool) -> None:
        now = self._clock.now()
        if not allowed or now < self._not_before:
            return
        taken = {child.name for child in self.children}
        name = next(f"{self.config.name}-{n}" for n in range(len(taken) + 1) if f"{self.config.name}-{n}" not in taken)
        child = Child(name, self._run(self._arguments(name)), self._changed, self.config.environment)
        child.began = now
        self.children.append(child)
        self.starts += 1
        try:
            await child.start()
        except OSError as error:
            child.state = "ended"
            self.problem = f"cannot be started: {error}"
        _log.warning("%s: %s is started", self.config.name, name)

    def _arguments(self, name: str) -> list[str]:
        """Settings go by a file, where no list of processes shows them."""
        config = self.config
        serve = {key: _here(value) if key in PATHS else value for key, value in config.serve.items()}
        settings = {"name": config.served_name, **serve, "host": "127.0.0.1", "port": 0}
        if config.kv_events:
            settings["kv_events_endpoint"] = f"ipc://{self._events(name)}"
            settings["kv_events_replay_endpoint"] = f"ipc://{self._events(name)}-replay"
        file = Path(self._folder.name) / f"{name}.toml"
        file.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items()))
        return ["serve", config.model, "--config", str(file)]

    def _events(self, name: str) -> Path:
        """The socket of an engine's KV events: paths of sockets are short."""
        return Path(self._folder.name) / name.removeprefix(f"{self.config.name}-")

    def _bury(self, *, stopping: bool) -> None:
        """Take note of those that have ended. While the gateway is stopping that is no crash: who stops a whole
        container or service stops its engines at the same time."""
        for child in [child for child in self.children if child.state == "ended"]:
            self.children.remove(child)
            self._old.discard(child)
            left = self._leaving.pop(child, None)
            if left is None and not stopping:
                self._died(child)
        if any(child.state == "ready" and self._clock.now() - child.began > _EARLY for child in self.children):
            self._failures, self.problem = 0, ""

    def _died(self, child: Child) -> None:
        self.crashes += 1
        self._failures += 1
        pause = min(self._starting.backoff_seconds * 2 ** (self._failures - 1), self._starting.longest_backoff_seconds)
        if self._failures == 1 and child.url:  # it had worked: no reason to wait
            pause = 0.0
        self._not_before = self._clock.now() + pause
        self.problem = child.verdict or f"{child.name} ended with code {child.returncode}: {child.last_words}"
        _log.error("%s; the next is started in %.1f s", self.problem, pause)
        self._changed()

    def _give_up_on_slow_starts(self) -> None:
        for child in self.children:
            if child.state == "starting" and self._clock.now() - child.began > self._starting.seconds:
                self._kill(child, f"was not ready within {self._starting.seconds:g} s: {child.last_words}")

    def _give_up_on_unwell(self, upstreams: Mapping[str, Upstream]) -> None:
        """A server may outlive its engine, or hang: it has as long as a start may take to get well again."""
        now = self._clock.now()
        for child in self.children:
            upstream = upstreams.get(child.name)
            if child.state != "ready" or upstream is None or upstream.healthy:
                child.unwell_since = None
                continue
            if child.unwell_since is None:
                child.unwell_since = now
            if now - child.unwell_since > self._starting.seconds:
                self._kill(child, f"was up and not well for {self._starting.seconds:g} s: {upstream.problem}")

    def _kill(self, child: Child, why: str) -> None:
        child.verdict = self.problem = f"{child.name} {why}"
        child.kill()


def _here(path: Any) -> Any:
    """A path as it is seen from where the gateway runs; a file of settings has it seen from the file's folder."""
    return str(Path(path).expanduser().absolute()) if isinstance(path, str) else path


def _rules(config: OwnEngineConfig) -> ScaleRules:
    scale = config.scale
    return ScaleRules(
        least=config.replicas.min,
        most=config.replicas.max,
        queue_seconds=scale.queue_seconds,
        up_after=scale.up_after_seconds,
        down_after=scale.down_after_seconds,
        few=scale.few_requests,
    )


def _needs(config: OwnEngineConfig) -> tuple[object, ...]:
    """What an engine is started with."""
    return config.model, config.serve, config.environment, config.kv_events

"""Looks again and again where replicas are told of, and offers those that are there now.

What cannot be read or looked up says nothing: the replicas that were known stay. Whether they are well is seen at
themselves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tidemill.core.errors import ConfigError
from tidemill.gateway.config import DiscoveryConfig, GatewayConfig, ReplicaConfig
from tidemill.gateway.discovery.listing import read_listing
from tidemill.gateway.discovery.names import Resolve, addresses, replicas_at
from tidemill.gateway.replica_source import Offer

__all__ = ["Discovery"]

_log = logging.getLogger(__name__)


class Discovery:
    """Implements ReplicaSource."""

    def __init__(self, config: GatewayConfig, *, resolve: Resolve = addresses) -> None:
        self._places = config.discovery
        self._resolve = resolve
        self._found: dict[DiscoveryConfig, tuple[ReplicaConfig, ...]] = {}
        self.problems: dict[DiscoveryConfig, str] = {}
        """Where the last look failed, and why."""
        self._offer: Offer | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def name(self) -> str:
        """See ReplicaSource."""
        return "discovery"

    @property
    def places(self) -> Sequence[DiscoveryConfig]:
        """Where it looks."""
        return self._places

    async def start(self, offer: Offer) -> None:
        """See ReplicaSource; each place has been looked at once."""
        self._offer = offer
        await asyncio.gather(*(self.look(place) for place in self._places))
        self._watch()

    async def close(self) -> None:
        """See ReplicaSource."""
        self._offer = None
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def check(self, config: GatewayConfig) -> None:
        """See ReplicaSource; what is not there yet may come."""

    def change(self, config: GatewayConfig) -> None:
        """See ReplicaSource."""
        if config.discovery == self._places:
            return
        self._places = config.discovery
        self._found = {place: found for place, found in self._found.items() if place in self._places}
        self.problems = {place: why for place, why in self.problems.items() if place in self._places}
        for task in self._tasks:
            task.cancel()
        self._say()
        self._watch(at_once=True)

    def expects(self, model: str) -> str:
        """See ReplicaSource."""
        if any(not place.models or model in place.models for place in self.problems):
            return f"no replicas were found: {next(iter(self.problems.values()))}"
        return ""

    def shown(self) -> list[dict[str, Any]]:
        """As JSON."""
        return [
            {
                "place": place.place,
                "replicas": [one.name for one in self._found.get(place, ())],
                "problem": self.problems.get(place),
            }
            for place in self._places
        ]

    async def look(self, place: DiscoveryConfig) -> None:
        """Look there once."""
        defaults: dict[str, Any] = {
            "engine": place.engine,
            "models": place.models,
            "labels": place.labels,
            "weight": place.weight,
        }
        if place.api_key_env is not None:
            defaults["api_key_env"] = place.api_key_env
        try:
            if place.file is not None:
                found = await asyncio.to_thread(read_listing, Path(place.file), defaults)
            else:
                assert place.dns is not None
                assert place.port is not None
                found = await replicas_at(place.dns, place.port, defaults, self._resolve)
        except ConfigError as error:
            self._failed(place, error.message)
            return
        if place not in self._places:
            return
        before = self._found.get(place)
        self._found[place] = found
        if found != before:
            _log.warning("discovery: %s has %s", place.place, ", ".join(one.name for one in found) or "no replicas")
        try:
            self._say()
        except ConfigError as error:  # a key that is not there
            if before is None:
                del self._found[place]
            else:
                self._found[place] = before
            self._failed(place, error.message)
            return
        self.problems.pop(place, None)

    def _failed(self, place: DiscoveryConfig, why: str) -> None:
        if place in self._places and self.problems.get(place) != why:
            self.problems[place] = why
            _log.error("discovery: %s; what was known stays", why)

    def _say(self) -> None:
        if self._offer is not None:
            self._offer([one for place in self._places for one in self._found.get(place, ())])

    def _watch(self, *, at_once: bool = False) -> None:
        self._tasks = [asyncio.create_task(self._look_again(place, at_once=at_once)) for place in self._places]

    async def _look_again(self, place: DiscoveryConfig, *, at_once: bool) -> None:
        if at_once:
            await self.look(place)
        while True:
            await asyncio.sleep(place.interval_seconds)
            try:
                await self.look(place)
            except Exception as error:  # it has to be looked at again whatever happened
                _log.exception("looking at %s failed", place.place)
                self.problems[place] = f"{type(error).__name__}: {error}"

"""Where replicas come from besides the list in the settings: engines started here, names that are looked up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tidemill.gateway.config import GatewayConfig, ReplicaConfig
from tidemill.gateway.upstream import Upstream

__all__ = ["Offer", "ReplicaSource"]

Offer = Callable[[Sequence[ReplicaConfig]], list[Upstream]]
"""Takes all the replicas that a source has from now on and gives what stands for them; see ``Fleet.offer``."""


class ReplicaSource(Protocol):
    """Belongs to one event loop. There is one of each kind for as long as there is a gateway, also where the settings
    ask for nothing of it: a reload may."""

    @property
    def name(self) -> str:
        """For the log; no two are the same."""

    async def start(self, offer: Offer) -> None:
        """Begin, within seconds. What is there already is offered before it returns, the rest when it comes."""

    async def close(self) -> None:
        """End. Nothing is offered afterwards."""

    def check(self, config: GatewayConfig) -> None:
        """Raise ConfigError for settings that ``change`` could not take up."""

    def change(self, config: GatewayConfig) -> None:
        """Other settings from now on."""

    def expects(self, model: str) -> str:
        """Why a model of this source has no replica now; empty: it is none of its models."""

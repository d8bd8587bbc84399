"""Tenants that some replicas are for, and replicas that are for some tenants alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Pin", "Pins"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A tenant's replicas: those with one of these names, or with all of these labels."""

    tenant: str
    """As the file of keys names it, or a key's id."""
    replicas: Collection[str] = ()
    labels: Mapping[str, str]
    reserved: bool = False
    """They are for nobody else."""

    def holds(self, replica: str, labels: Mapping[str, str]) -> bool:
        """Whether a replica is one of them."""
        if replica in self.replicas:
            return True
        return bool(self.labels) and all(labels.get(name) == value for name, value in self.labels.items())


class Pins:
    """All of them."""

    def __init__(self, pins: Sequence[Pin]) -> None:
        self._pins = pins

    def bar(self, tenant: str, replica: str, labels: Mapping[str, str]) -> str:
        """Why a tenant's request may not go to a replica; empty: it may."""
        own = [pin for pin in self._pins if tenant in (f"tenant:{pin.tenant}", f"key:{pin.tenant}")]
        if own:
            return "" if any(pin.holds(replica, labels) for pin in own) else "is not one of the tenant's replicas"
        reserved = any(pin.reserved and pin.holds(replica, labels) for pin in self._pins)
        return "is reserved for another tenant" if reserved else ""

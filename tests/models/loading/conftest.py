"""A hub on loopback with its own empty cache, and models small enough to fetch."""

from __future__ import annotations

from tests.support.hub_fixtures import hub, hub_cache

__all__ = ["hub", "hub_cache"]

"""The policies by the names that a configuration uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tidemill.gateway.routing.choice import Policy
from tidemill.gateway.routing.kv_aware import KvAware
from tidemill.gateway.routing.predicted_seconds import PredictedSeconds
from tidemill.gateway.routing.prefix_aware import PrefixAware
from tidemill.gateway.routing.simple import LeastLoad, PowerOfTwo, RandomChoice, RoundRobin, Weighted

__all__ = ["DEFAULT_POLICY", "POLICIES", "READ_PREFIXES"]

DEFAULT_POLICY: Final = "predicted-seconds"
POLICIES: Final[Mapping[str, Callable[[], Policy]]] = {
    DEFAULT_POLICY: PredictedSeconds,
    "prefix-aware": PrefixAware,
    "kv-aware": KvAware,
    "least-load": LeastLoad,
    "power-of-two": PowerOfTwo,
    "weighted": Weighted,
    "round-robin": RoundRobin,
    "random": RandomChoice,
}
READ_PREFIXES: Final = frozenset({DEFAULT_POLICY, "prefix-aware", "kv-aware"})
"""Those that look at what replicas have cached of a prompt."""

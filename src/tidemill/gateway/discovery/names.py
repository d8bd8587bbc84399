"""The replicas under a name: one for each address that it has."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from tidemill.core.errors import ConfigError
from tidemill.gateway.config import ReplicaConfig
from tidemill.gateway.discovery.listing import replica_name

__all__ = ["Resolve", "addresses", "replicas_at"]

_PATIENCE: Final = 5.0
"""Seconds for a resolver."""
Resolve = Callable[[str, int], Awaitable[list[str]]]
"""The addresses of a host. Raises OSError."""


async def addresses(host: str, port: int) -> list[str]:
    """As the system's resolver has them: A and AAAA records, the hosts file, whatever else it is set up for."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return sorted({str(entry[4][0]) for entry in found})


async def replicas_at(host: str, port: int, defaults: Mapping[str, Any], resolve: Resolve) -> tuple[ReplicaConfig, ...]:
    """Raises ConfigError where the name has no address now."""
    try:
        async with asyncio.timeout(_PATIENCE):
            found = await resolve(host, port)
    except TimeoutError as error:
        raise ConfigError(f"{host}: was not looked up within {_PATIENCE:g} s", param="discovery") from error
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{host}: {getattr(error, 'strerror', None) or error}", param="discovery") from error
    if not found:
        raise ConfigError(f"{host}: has no address", param="discovery")
    return tuple(
        ReplicaConfig.model_validate(
            {**defaults, "name": replica_name(f"{address}-{port}"), "url": f"http://{_host(address)}:{port}/v1"}
        )
        for address in found
    )


def _host(address: str) -> str:
    return f"[{address}]" if ipaddress.ip_address(address.partition("%")[0]).version == 6 else address

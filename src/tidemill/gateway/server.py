"""The gateway's process: bind, look at the replicas, say where it is, forward, and stop without cutting answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tidemill.core.clock import SystemClock
from tidemill.gateway.app import make_gateway_app
from tidemill.gateway.config import read_config
from tidemill.gateway.discovery.discovery import Discovery
from tidemill.gateway.fleet import Fleet
from tidemill.gateway.own.supervisor import Supervisor
from tidemill.serve.listener import bind, check_config
from tidemill.serve.logs import set_log_level
from tidemill.serve.server import DrainingServer
from tidemill.serve.tracing import Tracing, open_tracing

__all__ = ["gateway_server", "run_gateway"]


def gateway_server(fleet: Fleet, tracing: Tracing | None = None) -> DrainingServer:
    """The server of a fleet, which starts and ends with it; ``tracing`` follows requests."""
    server = DrainingServer(
        fleet.live.now,
        make=lambda server: make_gateway_app(
            fleet, clock=fleet.clock, drain=server.drain, stop=server.stop_within, tracing=tracing
        ),
        lifetime=fleet,
        reload=fleet.reload if fleet.can_reload else None,
        now=lambda: fleet.live.now,
    )
    if fleet.supervisor is not None:
        fleet.supervisor.stopping = lambda: server.drain.draining
    return server


def run_gateway(path: Path, *, say: Callable[[str], None]) -> int:
    """Serve until a signal ends it; the exit code. Raises ConfigError for settings that cannot be."""
    config = read_config(path)
    door = config.door
    check_config(door)
    clock = SystemClock()
    fleet = Fleet(
        config, clock, read=lambda: read_config(path), supervisor=Supervisor(config, clock), discovery=Discovery(config)
    )
    fleet.live.follow(set_log_level)
    listener = bind(door)
    tracing = open_tracing(door)
    server = gateway_server(fleet, tracing)
    port = listener.getsockname()[1]

    def started() -> None:
        scheme = "http" if door.tls_certificate is None else "https"
        say(f"Ready: {len(fleet.upstreams)} replicas behind {scheme}://{door.host}:{port}/v1, by {config.policy}")
        for one in fleet.upstreams:
            say(
                f"  {one.name}: {', '.join(one.models) or 'models unknown'}"
                + (f" ({one.problem})" if one.problem else "")
            )

    server.on_started = started
    try:
        server.run(sockets=[listener])
    finally:
        listener.close()
        if tracing is not None:
            tracing.close()
    return 0

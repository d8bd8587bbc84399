"""Reads the settings again while the server runs: those that can change do, the others are named.

All or nothing: where anything in the new settings is wrong, everything stays as it was. Answers that run go on under
the settings that they began with.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from tidemill.core.config import EngineConfig, ServerConfig
from tidemill.core.errors import ConfigError
from tidemill.core.settings import values_of
from tidemill.serve.listener import check_config
from tidemill.serve.live_config import LiveConfig

__all__ = ["LIVE_ENGINE", "LIVE_SERVER", "Reloaded", "Reloader"]

_log = logging.getLogger(__name__)

LIVE_SERVER: Final = frozenset(
    {
        "allowed_hosts",
        "allowed_origins",
        "api_keys",
        "drain_seconds",
        "keys_file",
        "log_level",
        "log_prompts",
        "log_requests",
        "max_body_bytes",
        "max_wait_seconds",
        "metrics_role",
        "slow_reader_seconds",
    }
)
LIVE_ENGINE: Final = frozenset({"max_waiting", "prefix_cache_ttl", "stuck_seconds"})
"""Settings of the engine that it takes up between two steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reloaded:
    """What came of it. Names only: a value may be a key."""

    changed: tuple[str, ...]
    needs_restart: tuple[str, ...]
    """These are other than what runs, and only a new process has them."""


class Reloader:
    """Belongs to the event loop of the server."""

    def __init__(
        self,
        read: Callable[[], tuple[EngineConfig, ServerConfig]],
        *,
        engine: EngineConfig,
        server: ServerConfig,
        change_engine: Callable[[EngineConfig], None],
    ) -> None:
        """``read``: gives the settings of now, or raises ConfigError. ``engine``, ``server``: what it gave at the
        start. ``change_engine`` takes up what of LIVE_ENGINE is new."""
        self.live = LiveConfig(server)
        self._read = read
        self._engine = engine
        self._change_engine = change_engine

    def reload(self) -> Reloaded:
        """Read and take up. Raises ConfigError, having changed nothing; the log says it as well."""
        try:
            engine, server = self._read()
            changed_server, fixed_server = _differences(self.live.now, server, LIVE_SERVER)
            changed_engine, fixed_engine = _differences(self._engine, engine, LIVE_ENGINE)
            taken = replace(self.live.now, **{name: getattr(server, name) for name in changed_server})
            check_config(taken)
        except ConfigError as error:
            _log.error("the settings are as they were: %s", error.message)
            raise
        self.live.change(taken)
        if changed_engine:
            self._engine = _with_values(self._engine, engine, changed_engine)
            self._change_engine(self._engine)
        outcome = Reloaded(changed=(*changed_server, *changed_engine), needs_restart=(*fixed_server, *fixed_engine))
        _say(outcome)
        return outcome


def _with_values(running: EngineConfig, new: EngineConfig, names: Iterable[str]) -> EngineConfig:
    """The settings that run, with these of the new ones."""
    taken = set(names)
    scheduler = {name: getattr(new.scheduler, name) for name in taken if hasattr(new.scheduler, name)}
    own = {name: getattr(new, name) for name in taken if name not in scheduler}
    return replace(running, scheduler=replace(running.scheduler, **scheduler), **own)


def _differences(running: Any, new: Any, live: frozenset[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The settings that differ: those that can change while the server runs, and the others."""
    before, after = values_of(running), values_of(new)
    names = [name for name in before if before[name] != after[name]]
    return tuple(name for name in names if name in live), tuple(name for name in names if name not in live)


def _say(outcome: Reloaded) -> None:
    changed = ", ".join(outcome.changed) or "nothing"
    _log.warning("read the settings again; changed: %s", changed)
    if outcome.needs_restart:
        _log.warning("only a new process takes up: %s", ", ".join(outcome.needs_restart))

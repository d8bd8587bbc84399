"""The server's settings while it runs: what may change, and who has to know when it does."""

from __future__ import annotations

from collections.abc import Callable

from tidemill.core.config import ServerConfig

__all__ = ["LiveConfig"]


class LiveConfig:
    """One configuration at a time. Read ``now`` at each use, or ``follow`` it."""

    def __init__(self, config: ServerConfig) -> None:
        self.now = config
        self._followers: list[Callable[[ServerConfig], None]] = []

    def follow(self, take: Callable[[ServerConfig], None]) -> None:
        """Hand over the settings of now, and at each change the new ones. ``take`` does not fail."""
        take(self.now)
        self._followers.append(take)

    def change(self, config: ServerConfig) -> None:
        """Other settings from now on, checked."""
        self.now = config
        for take in self._followers:
            take(config)

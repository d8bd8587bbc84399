"""What the server process writes to standard error of its own accord."""

from __future__ import annotations

import logging

from tidemill.core.config import ServerConfig

__all__ = ["set_log_level"]


def set_log_level(config: ServerConfig) -> None:
    """From which level on lines are written; those of other packages from warnings on."""
    logging.basicConfig(format="%(message)s")  # without effect where somebody has set up logging before
    logging.getLogger("tidemill").setLevel(config.log_level.upper())

"""``tidemill version``."""

from __future__ import annotations

import typer

from tidemill.cli.options import DebugOption, JsonOption
from tidemill.core.version import __version__

__all__ = ["version"]


def version(json: JsonOption = False, debug: DebugOption = False) -> None:  # noqa: ARG001 (debug is read by main)
    """Print the version."""
    typer.echo(f'{{"version": "{__version__}"}}' if json else f"tidemill {__version__}")

"""Commands that start the stand-in engine."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from tidemill.bench.peers import installed

__all__ = ["command_of", "fake_llama"]

_ENGINE = Path(__file__).parent / "fake_engine.py"
_DRIVERS = Path(installed.__file__).parent / "drivers"


def command_of(seconds: float) -> Callable[[int], list[str]]:
    """With so long a step, of a port."""
    return lambda port: [sys.executable, str(_ENGINE), str(_DRIVERS), str(seconds), "--port", str(port)]


def fake_llama(folder: Path, seconds: float) -> Path:
    """A llama-server that is none; with flash attention off it cannot start."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "llama-server"
    words = shlex.join([sys.executable, str(_ENGINE), str(_DRIVERS), str(seconds)])
    path.write_text(f'#!/bin/sh\ncase "$*" in *"-fa off"*) set -- "$@" broken;; esac\nexec {words} "$@"\n')
    path.chmod(0o755)
    return path

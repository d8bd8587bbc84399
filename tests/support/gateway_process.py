"""A real `tidemill gateway` process, as a user starts it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

__all__ = ["gateway_process"]


@contextlib.asynccontextmanager
async def gateway_process(file: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """One that has said that it is ready, and its URL."""
    made = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tidemill.cli", "gateway", str(file)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert made.stdout is not None
    try:
        said = ""
        while not (line := (await made.stdout.readline()).decode()).startswith("Ready: "):
            assert line, f"it ended: {said}"
            said += line
        yield made, line.split(" behind ")[1].split("/v1")[0]
    finally:
        if made.returncode is None:
            made.kill()
        await made.communicate()

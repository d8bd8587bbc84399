"""A server process over a scripted engine that counts, for tests of signals: ``python scripted_server.py DRAIN START``.

It drains for DRAIN seconds at most, and its engine takes START seconds to start.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.scripted_engine import ScriptedEngine
from tests.support.toy_text import ToyText, toy_info
from tidemill.core.config import ServerConfig
from tidemill.frontend.backend import LocalBackend
from tidemill.serve.server import run


class _Engine(ScriptedEngine):
    async def start(self) -> None:
        print("engine starts", flush=True)
        await asyncio.sleep(float(sys.argv[2]))

    async def close(self) -> None:
        await super().close()
        print("engine closed", flush=True)


def main() -> int:
    text = ToyText()
    engine = _Engine(list(b"0123456789") * 10, info=toy_info(text), step_delay=0.01)
    config = ServerConfig(port=0, drain_seconds=float(sys.argv[1]))
    return run(config, LocalBackend(engine, text), engine=engine, lifetime=engine)


if __name__ == "__main__":
    sys.exit(main())

"""A program that behaves like ``tidemill serve`` as far as a supervisor looks, and as ``FAKE`` in its environment says.

crash           ends while it starts
mute            never says that it is ready
short-lived     ends half a second after it was ready
wedged          says that it is ready, and to whoever asks it that it is not, until there is the file FAKE_CURED
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tomllib
from pathlib import Path

_HOW = os.environ.get("FAKE", "")


def _cured() -> bool:
    return Path(os.environ.get("FAKE_CURED", "")).is_file()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    size = next((int(line[15:]) for line in head.splitlines() if line.lower().startswith("content-length:")), 0)
    await reader.readexactly(size)
    if head.startswith("POST"):
        await asyncio.sleep(0.02)
    status = b"503 Unwell" if _HOW == "wedged" and not _cured() else b"200 OK"
    shown = {"data": [{"id": name}], "choices": [{"index": 0, "message": {"content": "x"}, "finish_reason": "stop"}]}
    body = json.dumps(shown).encode()
    writer.write(
        b"HTTP/1.1 %s\r\ncontent-type: application/json\r\nconnection: close\r\n"
        b"content-length: %d\r\n\r\n%s" % (status, len(body), body)
    )
    writer.close()


async def _serve(settings: dict[str, object]) -> None:
    print("loading the model", flush=True)
    if _HOW == "crash":
        sys.exit("out of memory")
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    if _HOW == "mute":
        await asyncio.sleep(3600)
    server = await asyncio.start_server(lambda r, w: _answer(r, w, str(settings["name"])), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    print(f"Ready: {settings['name']} at {url}\nTry:   curl {url}", flush=True)
    if _HOW == "short-lived":
        asyncio.get_running_loop().call_later(0.5, os._exit, 3)
    await ended.wait()
    server.close()


if __name__ == "__main__":
    asyncio.run(_serve(tomllib.loads(Path(sys.argv[sys.argv.index("--config") + 1]).read_text())))

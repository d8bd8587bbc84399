"""A headless Chromium, driven over its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

__all__ = ["CHROMIUM", "Tab", "browsing"]

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
"""The browser on this machine, if there is one."""
_SECONDS = 60.0
"""The longest that anything may take on a busy machine."""


class Tab:
    """One tab. What the page logs as an error, policy violations among it, is in ``complaints``."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._ids = itertools.count(1)
        self._open: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.complaints: list[str] = []
        self.requested: list[str] = []
        """URLs that the page asked for."""

    async def listen(self) -> None:
        """Take in what the browser says, until it ends."""
        async for message in self._socket:
            said = json.loads(message.data)
            if "id" in said:
                self._open.pop(said["id"]).set_result(said)
            elif said["method"] == "Log.entryAdded" and said["params"]["entry"]["level"] == "error":
                self.complaints.append(said["params"]["entry"]["text"])
            elif said["method"] == "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(said["params"]["exceptionDetails"]))
            elif said["method"] == "Network.requestWillBeSent":
                self.requested.append(said["params"]["request"]["url"])

    async def call(self, method: str, **params: object) -> dict[str, Any]:
        """A command of the protocol, and its result."""
        number = next(self._ids)
        answer = self._open[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        said = await asyncio.wait_for(answer, _SECONDS)
        assert "error" not in said, said
        result: dict[str, Any] = said["result"]
        return result

    async def go(self, url: str) -> None:
        """Open a page and wait until its script has run."""
        await self.call("Page.navigate", url=url)
        await self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    async def value(self, expression: str) -> Any:
        """What an expression of JavaScript gives, awaited."""
        done = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    async def until(self, expression: str) -> Any:
        """Wait until an expression is true."""
        async with asyncio.timeout(_SECONDS):
            while not (found := await self.value(expression)):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        return found

    async def press(self, key: str, *, modifiers: int = 0) -> None:
        """A key: one character, or Enter, Tab, Escape. ``modifiers`` 8: with Shift."""
        codes = {"Enter": (13, "\r"), "Tab": (9, ""), "Escape": (27, "")}
        code, text = codes.get(key, (ord(key[0].upper()), key))
        how = {"key": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        await self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **how)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **how)

    async def write(self, text: str) -> None:
        """Type into whatever has the focus."""
        await self.call("Input.insertText", text=text)

    async def resize(self, width: int, height: int, *, scale: float = 1) -> None:
        """The size of the window, in CSS pixels."""
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False
        )

    async def scheme(self, name: str) -> None:
        """``light`` or ``dark``."""
        await self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    async def picture(self, path: Path) -> None:
        """A PNG of the window."""
        path.write_bytes(base64.b64decode((await self.call("Page.captureScreenshot", format="png"))["data"]))  # noqa: ASYNC240


@asynccontextmanager
async def browsing(folder: Path) -> AsyncIterator[Tab]:
    """A tab of a browser of its own, whose profile lies in ``folder``; the browser ends with the block."""
    assert CHROMIUM is not None
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage"]
    options += ["--disable-background-networking", "--remote-debugging-port=0", f"--user-data-dir={folder}"]
    process = await asyncio.create_subprocess_exec(
        CHROMIUM,
        *options,
        "about:blank",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, "HOME": str(folder)},
    )
    try:
        port = await _port(folder / "DevToolsActivePort", process)
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/json") as listed:
            (page,) = [each for each in await listed.json() if each["type"] == "page"]
            async with session.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                tab = Tab(socket)
                listener = asyncio.create_task(tab.listen())
                for domain in ("Page", "Runtime", "Log", "Network"):
                    await tab.call(f"{domain}.enable")
                yield tab
                listener.cancel()
                await asyncio.gather(listener, return_exceptions=True)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _port(path: Path, process: asyncio.subprocess.Process) -> int:
    async with asyncio.timeout(_SECONDS):
        while not (path.exists() and "\n" in path.read_text()):  # noqa: ASYNC240
            assert process.returncode is None, "the browser ended as it started"
            await asyncio.sleep(0.05)
    return int(path.read_text().split()[0])  # noqa: ASYNC240

"""Pictures of what people see, for the docs: the terminal as SVG, the page as PNG, of the default model at work.

    python scripts/draw_screens.py                  all of them, into docs/
    python scripts/draw_screens.py top chat         some: top, chat, page, gateway

Needs Chromium for the page and `pip install pyte pillow`. The pictures are of a real server, so that no two
are alike; look at them before they are committed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pty
import re
import select
import struct
import sys
import tempfile
import termios
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fcntl import ioctl
from itertools import groupby
from pathlib import Path
from typing import Final

import pyte
from PIL import Image
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
from serve_bench import TIDEMILL, default_model, default_server  # noqa: E402 (scripts beside each other)

from tests.support.browser import Tab, browsing  # noqa: E402
from tests.support.gateway_process import gateway_process  # noqa: E402

DOCS: Final = ROOT / "docs"
NAME: Final = "SmolLM2-135M-Instruct"
COLUMNS: Final = 96
STORY: Final = "Write a long story about a miller who waits for the flood."
QUESTIONS: Final = ("What is a tide mill?", STORY, "Why does the tide come twice a day?", "List ten rivers of Europe.")
INKS: Final = ("#182226", "#ff8f98", "#3fb879", "#deb864", "#6ea8fe", "#c586e0", "#3fb8ad", "#e4ecec")
"""The eight colours of a terminal; the first is the background, the last the text, as the page has them in the dark."""


def _rgb(ink: str) -> tuple[int, int, int]:
    return int(ink[1:3], 16), int(ink[3:5], 16), int(ink[5:7], 16)


THEME: Final = TerminalTheme(_rgb(INKS[0]), _rgb(INKS[-1]), [*map(_rgb, INKS)])


class Terminal:
    """A program in a terminal of its own, and what it shows."""

    def __init__(self, command: Sequence[str], *, lines: int) -> None:
        pyte.graphics.TEXT[2] = "+italics"  # pyte knows no dim text; nothing here is in italics
        self._screen = pyte.Screen(COLUMNS, lines)
        self._stream = pyte.ByteStream(self._screen)
        pid, self._file = pty.fork()
        if pid == 0:
            os.environ.update(TERM="xterm-256color", COLUMNS=str(COLUMNS), LINES=str(lines))
            os.execvp(command[0], list(command))
        ioctl(self._file, termios.TIOCSWINSZ, struct.pack("HHHH", lines, COLUMNS, 0, 0))
        self._pid = pid

    def watch(self, seconds: float, until: Callable[[str], object] = lambda _: False) -> None:
        """Take in what it writes, for so long or until what is shown is as it should be."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not until(self.shown):
            if select.select([self._file], [], [], min(left, 0.2))[0]:
                self._stream.feed(os.read(self._file, 65536))

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._file, text.encode())

    @property
    def shown(self) -> str:
        """The text of the screen."""
        return "\n".join(line.rstrip() for line in self._screen.display).rstrip()

    def picture(self, path: Path, title: str) -> None:
        """An SVG of the screen, without the empty lines below."""
        lines = len(self.shown.split("\n"))
        rows = [Text.assemble(*_runs(self._screen, number)) for number in range(lines)]
        with Path(os.devnull).open("w") as nowhere:
            console = Console(width=COLUMNS, record=True, file=nowhere, force_terminal=True, color_system="truecolor")
            for row in rows:
                console.print(row, no_wrap=True, overflow="crop", highlight=False)
        svg = console.export_svg(title=title, theme=THEME, unique_id=path.stem)
        svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.S).replace("Fira Code", "ui-monospace, Menlo, Consolas")
        path.write_text(re.sub(r"[ \t]+\n|\n{2,}", "\n", svg))

    def close(self) -> None:
        """End the program."""
        os.close(self._file)
        os.waitpid(self._pid, 0)


def _runs(screen: pyte.Screen, number: int) -> Iterator[tuple[str, Style]]:
    """The texts of a line, each of one look."""
    line = [screen.buffer[number][column] for column in range(COLUMNS)]
    for style, cells in groupby(line, key=_style):
        yield "".join(cell.data for cell in cells), style


def _style(cell: pyte.screens.Char) -> Style:
    return Style(color=None if cell.fg == "default" else cell.fg, bold=cell.bold, dim=cell.italics)


@contextmanager
def visitors(base: str) -> Iterator[None]:
    """Others who ask the server meanwhile, each again when it is answered."""
    over = threading.Event()

    def visit(place: int) -> None:
        turn = place
        while not over.wait(0.7 * place):
            body = {"model": NAME, "messages": [{"role": "user", "content": QUESTIONS[turn % len(QUESTIONS)]}]}
            data = json.dumps({**body, "max_tokens": 60 + 30 * place, "stream": True, "temperature": 0}).encode()
            asked = urllib.request.Request(f"{base}/chat/completions", data, {"Content-Type": "application/json"})
            with urllib.request.urlopen(asked, timeout=120) as answer:
                answer.read()
            turn += 1

    threads = [threading.Thread(target=visit, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def draw_top(base: str) -> None:
    """``tidemill top`` beside some visitors."""
    with visitors(base):
        terminal = Terminal([*TIDEMILL, "top", "--url", base.removesuffix("/v1")], lines=24)
        terminal.watch(45)
        terminal.picture(DOCS / "top.svg", "tidemill top")
        terminal.close()


def draw_chat() -> None:
    """``tidemill chat``, two questions long."""
    terminal = Terminal([*TIDEMILL, "chat", default_model(), "--temperature", "0", "--max-tokens", "90"], lines=30)
    terminal.watch(60, lambda text: text.endswith(">"))
    for count, question in enumerate(("What is a tide mill?", "Say that in one short sentence."), 2):
        terminal.type(question + "\n")
        terminal.watch(60, lambda text, count=count: text.endswith(">") and text.count("\n>") >= count)
    terminal.picture(DOCS / "chat.svg", "tidemill chat")
    terminal.close()


async def draw_page(base: str) -> None:
    """The page, in the light and in the dark."""
    with tempfile.TemporaryDirectory() as folder:
        async with browsing(Path(folder)) as tab:
            await tab.resize(1180, 740)
            await tab.go(base.removesuffix("/v1") + "/")
            await tab.value("document.getElementById('temperature').value = 0")
            await _ask(tab, "What is a tide mill?")
            await tab.until("document.querySelectorAll('.about').length === 1")
            await asyncio.sleep(8)
            await _ask(tab, STORY)
            await asyncio.sleep(4)
            for name, scheme in (("page.png", "light"), ("page-dark.png", "dark")):
                await _shoot(tab, name, scheme)


async def draw_gateway() -> None:
    """The gateway's page, before two engines that it has started."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "gateway.json"
        serve = {"name": NAME, "threads": 1, "max_model_len": 2048, "kv_memory": 128 * 2**20, "max_running": 4}
        group = {"name": "smol", "model": default_model(), "serve": serve, "replicas": {"min": 2, "max": 3}}
        settings = {
            "server": {"port": 0},
            "engines": [group],
            "replicas": [{"name": "elsewhere", "url": "http://127.0.0.1:9/v1", "engine": "vllm", "models": [NAME]}],
            "cache": {"megabytes": 16},
        }
        file.write_text(json.dumps(settings))
        async with gateway_process(file) as (_, url):
            with visitors(f"{url}/v1"):
                async with browsing(Path(folder)) as tab:
                    await tab.resize(1380, 760)
                    await tab.go(f"{url}/")
                    await asyncio.sleep(20)
                    await _shoot(tab, "gateway-page.png", "light")
                    await _shoot(tab, "gateway-page-dark.png", "dark")


async def _shoot(tab: Tab, name: str, scheme: str) -> None:
    await tab.scheme(scheme)
    await asyncio.sleep(0.3)
    await tab.picture(DOCS / name)
    with Image.open(DOCS / name) as picture:
        picture.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(DOCS / name, optimize=True)


async def _ask(tab: Tab, question: str) -> None:
    await tab.value("document.getElementById('prompt').focus()")
    await tab.write(question)
    await tab.press("Enter")


def main() -> None:
    """Draw what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", nargs="*", help="top, chat, page, gateway")
    which = parser.parse_args().which or ["top", "chat", "page", "gateway"]
    if "chat" in which:
        draw_chat()
    if "gateway" in which:
        asyncio.run(draw_gateway())
    if {"top", "page"} & set(which):
        with default_server(f"--name {NAME} --kv-memory 128MiB --max-model-len 2048") as base:
            if "top" in which:
                draw_top(base)
            if "page" in which:
                with visitors(base):
                    asyncio.run(draw_page(base))


if __name__ == "__main__":
    main()

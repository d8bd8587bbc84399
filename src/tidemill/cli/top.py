"""``tidemill top``: a server as it works, in the terminal."""

from __future__ import annotations

import json
import os
import select
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from tidemill.cli.options import DebugOption, JsonOption
from tidemill.core.errors import ConfigError, TidemillError

if TYPE_CHECKING:
    from tidemill.cli.top_reading import Reading, Server

__all__ = ["top", "watch"]

_KEPT = 600
"""Rates of the past that are remembered."""


def top(
    *,
    url: Annotated[str, typer.Option("--url", help="The server: Tidemill's or vLLM's.")] = "http://127.0.0.1:8000",
    interval: Annotated[float, typer.Option("--interval", min=0.1, max=3600, help="Seconds between readings.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print the figures of one interval and end.")] = False,
    as_json: JsonOption = False,
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key", envvar="TIDEMILL_API_KEY", show_envvar=True, help="A key, if the server asks for one."
        ),
    ] = None,
    debug: DebugOption = False,  # noqa: ARG001 (read by main)
) -> None:
    """Show what a server does: sequences that run and wait, tokens per second, latencies, KV blocks, prefix hits.

    It reads /metrics, so a server of vLLM can be looked at too. q or Ctrl-C ends it. Example: tidemill top --url
    http://10.0.0.5:8000 --once --json
    """
    from tidemill.cli.top_reading import Server, figures
    from tidemill.cli.top_screen import screen

    if as_json and not once:
        raise ConfigError("--json prints one reading: give --once with it", param="json")
    server = Server(url, api_key=api_key)
    if once:
        before = server.read()
        time.sleep(interval)
        found = figures(before, server.read())
        width, _ = shutil.get_terminal_size()
        lines = screen(found, [found["tokens_per_second"] or 0.0], url=server.url, width=width, colour=False)
        print(json.dumps({"url": server.url, **found}) if as_json else "\n".join(lines))
        return
    if not sys.stdout.isatty():
        raise ConfigError("top needs a terminal to draw in; --once prints one reading", param="once")
    with _terminal(sys.stdout):
        watch(server, out=sys.stdout, pause=lambda: _pause(interval))


def watch(server: Server, *, out: TextIO, pause: Callable[[], bool]) -> None:
    """Draw a screen per reading until ``pause``, which waits for the next one, says so. A server that cannot be read
    is waited for, and its last figures stay."""
    from tidemill.cli.top_reading import figures
    from tidemill.cli.top_screen import screen

    readings: list[Reading] = []
    rates: list[float] = []
    shown: dict[str, Any] | None = None
    while True:
        trouble = None
        try:
            now = server.read()
            rates = [*rates, figures((readings or [now])[-1], now)["tokens_per_second"] or 0.0][-_KEPT:]
            readings = [one for one in readings if now.time - one.time <= 10] + [now]
            shown = figures(readings[0], now) | {"tokens_per_second": rates[-1]}
        except TidemillError as error:
            trouble, readings = error.message, []
        size = shutil.get_terminal_size()
        if shown is None:
            lines = [f"{trouble}"[: size.columns]]
        else:
            lines = screen(
                shown,
                rates,
                url=server.url,
                trouble=trouble,
                width=size.columns,
                height=size.lines - 1,
                colour="NO_COLOR" not in os.environ,
                unicode=(out.encoding or "").lower().startswith("utf"),
            )
        out.write("\x1b[H" + "".join(f"{line}\x1b[K\r\n" for line in lines) + "\x1b[J")
        out.flush()
        if pause():
            return


@contextmanager
def _terminal(out: TextIO) -> Iterator[None]:
    """The second screen without a cursor, keys unechoed; as it was at the end, however that comes."""
    import termios
    import tty

    keys = termios.tcgetattr(sys.stdin) if sys.stdin.isatty() else None
    out.write("\x1b[?1049h\x1b[?25l")
    try:
        if keys is not None:
            tty.setcbreak(sys.stdin)
        yield
    except KeyboardInterrupt:
        pass
    finally:
        if keys is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, keys)
        out.write("\x1b[?25h\x1b[?1049l")
        out.flush()


def _pause(seconds: float) -> bool:
    """Wait; True once somebody presses q."""
    if not sys.stdin.isatty():
        time.sleep(seconds)
        return False
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if select.select([sys.stdin], [], [], left)[0]:
            pressed = os.read(sys.stdin.fileno(), 64)
            if not pressed or b"q" in pressed.lower():
                return True
    return False

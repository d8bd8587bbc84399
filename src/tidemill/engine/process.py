"""The engine process: ``python -m tidemill.engine.process --fd N --board N --dump N --factory module:function``.

It reads the configuration from the socket, builds the loop, and then turns: commands in, one step, deltas out.
Terminal signals are the server's business: SIGINT and SIGTERM are ignored here. The process ends when the server
closes the socket, when the server dies (even while a step hangs), or when the loop cannot go on.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import logging
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable

from tidemill.core.config import EngineConfig
from tidemill.engine.black_box import BlackBox, Pulse
from tidemill.engine.loop import EngineLoop
from tidemill.engine.turn import STATS_SECONDS, Turns
from tidemill.engine.wire import Channel, Failure, Inbox, Start, Started, StartFailed

__all__ = ["GRACE_SECONDS", "HEARTBEAT_SECONDS", "LoopFactory", "find_factory", "main", "serve"]

HEARTBEAT_SECONDS = 0.5
"""While there is nothing to do, a message goes out this often."""
GRACE_SECONDS = 2.0
"""After the server has hung up, a running step has this long before the process ends without it."""

LoopFactory = Callable[[EngineConfig], EngineLoop]

_PR_SET_PDEATHSIG = 1
_PULSES = 8
"""So many times in stuck_seconds the board is told how far the engine has come."""
_PULSE_SECONDS = 0.125
"""At least so often: stuck_seconds may become 1 while the engine runs."""


def serve(loop: EngineLoop, channel: Channel) -> None:
    """Turn until the other side hangs up. What the loop raises is raised."""
    turns, due = Turns(loop), 0.0
    while True:
        pause = turns.pause
        messages = channel.receive(HEARTBEAT_SECONDS if pause is None else min(pause, HEARTBEAT_SECONDS))
        if not channel.open:
            turns.close()
            return
        commands = [command for message in messages if isinstance(message, Inbox) for command in message.commands]
        outbox = turns.turn(commands, stats=time.perf_counter() >= due)
        begin = time.perf_counter()
        if outbox.stats is not None:
            due = begin + STATS_SECONDS
        channel.send(outbox)
        if outbox.deltas:
            loop.emitted(time.perf_counter() - begin)


def find_factory(path: str) -> LoopFactory:
    """The function that an import path ``module:function`` names."""
    module, _, name = path.partition(":")
    factory: LoopFactory = getattr(importlib.import_module(module), name)
    return factory


def main(arguments: list[str] | None = None) -> int:
    """Run the engine; the exit code is 0 if the server ended it, 1 if it ended itself."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    parser = argparse.ArgumentParser(prog="tidemill.engine.process", description="One engine, for one server.")
    parser.add_argument("--fd", type=int, required=True, help="the socket to the server, inherited")
    parser.add_argument("--board", type=int, required=True, help="memory that the server reads, inherited")
    parser.add_argument("--dump", type=int, required=True, help="a file for tracebacks, inherited")
    parser.add_argument("--factory", required=True, help="module:function that builds the engine loop")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="engine: %(message)s")
    sock = socket.socket(fileno=options.fd)
    _die_with_parent(options.fd)
    box = BlackBox(options.board, options.dump)
    box.catch()
    channel = Channel(sock)
    try:
        return _run(channel, options.factory, box)
    except BaseException as error:
        box.raised(error)
        raise
    finally:
        channel.close()


def _run(channel: Channel, factory: str, box: BlackBox) -> int:
    config = _configured(channel)
    loop = None if config is None else _start(channel, factory, config)
    if config is None or loop is None:
        return 1
    loop.record(box)
    pulse = Pulse(box, lambda: loop.progress, min(config.stuck_seconds / _PULSES, _PULSE_SECONDS))
    try:
        channel.send(Started(loop.info, loop.stats()))
        serve(loop, channel)
    finally:
        pulse.close()
        loop.close()
    return 0


def _configured(channel: Channel) -> EngineConfig | None:
    messages: list[Start | Inbox] = []
    while not messages and channel.open:
        messages = channel.receive(HEARTBEAT_SECONDS)
    if not messages:
        return None
    start = messages[0]
    assert isinstance(start, Start), "the first message is the configuration"
    return start.config


def _start(channel: Channel, factory: str, config: EngineConfig) -> EngineLoop | None:
    try:
        return find_factory(factory)(config)
    except Exception as error:
        channel.send(StartFailed(Failure.of(error)))
        return None


def _die_with_parent(fd: int) -> None:
    """End with the server, however it ends. The kernel's signal also reaches a stopped process; the watch on the
    socket works on every system and while a step hangs. (On Linux the signal comes when the *thread* that started
    this process ends: the server starts it from the thread of its event loop.)"""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    threading.Thread(target=_watch, args=(fd,), name="tidemill-parent-watch", daemon=True).start()


def _watch(fd: int) -> None:
    poll = select.poll()
    poll.register(fd, getattr(select, "POLLRDHUP", 0))
    poll.poll()
    time.sleep(GRACE_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())

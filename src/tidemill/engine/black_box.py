"""What an engine process leaves behind when it ends, however it ends: memory that its server holds as well.

    board   progress, the last steps in sizes, and which requests the newest one computes       written by the engine
    dump    where each thread was: by Python's faulthandler, or the traceback of what was raised

The server makes both before it starts the process and reads them when that is gone; ``progress`` it reads meanwhile, to
tell an engine that works from one that hangs. Sizes and numbers only: nothing of what requests say.
"""

from __future__ import annotations

import faulthandler
import mmap
import os
import signal
import struct
import tempfile
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["NOTHING_LEFT", "BlackBox", "Pulse", "Remains", "StepRecord"]

_HEAD: Final = struct.Struct("<QQI4x")
"""Progress, steps written so far, tickets of the newest one."""
_STEP: Final = struct.Struct("<QddIIIIII")
_TICKET: Final = struct.Struct("<q")
_STEPS: Final = 64
"""Steps that are kept."""
_TICKETS: Final = 4096
_STEPS_AT: Final = _HEAD.size
_TICKETS_AT: Final = _STEPS_AT + _STEPS * _STEP.size
_SIZE: Final = _TICKETS_AT + _TICKETS * _TICKET.size
_DUMP_BYTES: Final = 256 << 10
"""Most of a dump that is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One step, as it was planned and how long it took."""

    step: int
    began: float
    """On the engine's clock, in seconds."""
    seconds: float | None
    """None: it had not ended."""
    rows: int
    """Sequences in it."""
    tokens: int
    drawn: int
    """Positions that a token was drawn at."""
    running: int
    waiting: int
    kv_held: int
    """KV blocks that sequences held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remains:
    """What was read from a box."""

    steps: tuple[StepRecord, ...] = ()
    """Oldest first."""
    tickets: frozenset[int] = frozenset()
    """Which requests the newest step computed, by the numbers of their tickets."""
    dump: str = ""


NOTHING_LEFT: Final = Remains()


class BlackBox:
    """The two files, at one of their two ends."""

    def __init__(self, board: int, dump: int) -> None:
        """Takes over two descriptors."""
        self.board = board
        self.dump = dump
        self._memory = mmap.mmap(board, _SIZE)
        self._step = -1

    @classmethod
    def made(cls) -> BlackBox:
        """An empty one, for the server. Its descriptors are handed to the process."""
        board = _anonymous("tidemill-board")
        os.truncate(board, _SIZE)
        return cls(board, _anonymous("tidemill-dump"))

    def close(self) -> None:
        """Release both; safe to call twice."""
        if self.board < 0:
            return
        self._memory.close()
        os.close(self.board)
        os.close(self.dump)
        self.board = self.dump = -1

    # -- the engine's end --------------------------------------------------------------------------------------------

    def catch(self) -> None:
        """Write down where every thread is when the process gets a signal that ends it, or SIGUSR1."""
        faulthandler.enable(self.dump, all_threads=True)
        faulthandler.register(signal.SIGUSR1, self.dump, all_threads=True, chain=False)

    def raised(self, error: BaseException) -> None:
        """Write down what ends the process."""
        os.write(self.dump, "".join(traceback.format_exception(error)).encode("utf-8", "backslashreplace"))

    def begin(self, record: StepRecord, tickets: Sequence[int]) -> None:
        """A step begins, with these requests in it."""
        count = min(len(tickets), _TICKETS)
        at = self._step = record.step % _STEPS
        self._put(at, record, -1.0)
        struct.pack_into(f"<{count}q", self._memory, _TICKETS_AT, *tickets[:count])
        _, steps, _ = _HEAD.unpack_from(self._memory)
        struct.pack_into("<QI", self._memory, 8, steps + 1, count)

    def end(self, seconds: float) -> None:
        """It has ended."""
        struct.pack_into("<d", self._memory, _STEPS_AT + self._step * _STEP.size + 16, seconds)

    def _put(self, at: int, record: StepRecord, seconds: float) -> None:
        sizes = (record.rows, record.tokens, record.drawn, record.running, record.waiting, record.kv_held)
        _STEP.pack_into(self._memory, _STEPS_AT + at * _STEP.size, record.step, record.began, seconds, *sizes)

    def set_progress(self, progress: int) -> None:
        """How far the engine has come, in whatever it counts; used by one thread besides the steps'."""
        struct.pack_into("<Q", self._memory, 0, progress % 2**64)

    # -- the server's end --------------------------------------------------------------------------------------------

    @property
    def progress(self) -> int:
        """What the engine said last."""
        return int(_HEAD.unpack_from(self._memory)[0])

    def remains(self) -> Remains:
        """What is there now. Of a process that has been killed while it wrote, the newest step may be half an older
        one."""
        _, written, count = _HEAD.unpack_from(self._memory)
        found = [_STEP.unpack_from(self._memory, _STEPS_AT + at * _STEP.size) for at in range(min(written, _STEPS))]
        tickets = struct.unpack_from(f"<{min(count, _TICKETS)}q", self._memory, _TICKETS_AT)
        dump = os.pread(self.dump, _DUMP_BYTES, 0).decode("utf-8", "replace")
        return Remains(steps=tuple(sorted(map(_record, found), key=_number)), tickets=frozenset(tickets), dump=dump)


class Pulse:
    """Carries the engine's progress to the board, also while a step runs: from a thread beside it."""

    def __init__(self, box: BlackBox, progress: Callable[[], int], seconds: float) -> None:
        self._box = box
        self._progress = progress
        self._seconds = seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="tidemill-pulse", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Nothing is asked of the engine any more."""
        self._stop.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._stop.wait(self._seconds):
            self._box.set_progress(self._progress())


def _record(fields: tuple[float, ...]) -> StepRecord:
    step, began, seconds, rows, tokens, drawn, running, waiting, kv_held = fields
    return StepRecord(
        step=int(step),
        began=began,
        seconds=None if seconds < 0 else seconds,
        rows=int(rows),
        tokens=int(tokens),
        drawn=int(drawn),
        running=int(running),
        waiting=int(waiting),
        kv_held=int(kv_held),
    )


def _number(record: StepRecord) -> int:
    return record.step


def _anonymous(name: str) -> int:
    """A file that has no name and is gone with its last descriptor; in memory where the system can."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())

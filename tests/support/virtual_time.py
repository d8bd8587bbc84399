"""An event loop whose time moves only when nothing else is left to do, and then at once to the next timer.

What runs on it takes no real time and always the same virtual time, so that delays can be compared with ``==``.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["LoopClock", "run_virtual"]

_T = TypeVar("_T")


class LoopClock:
    """Implements Clock: the running loop's time."""

    def now(self) -> float:
        return asyncio.get_running_loop().time()


def run_virtual(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Run something to its end in virtual time, which begins at 0."""
    selector = _Selector()
    loop = _VirtualLoop(selector)
    selector.loop = loop
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(coroutine)


class _VirtualLoop(asyncio.SelectorEventLoop):
    virtual = 0.0

    def time(self) -> float:
        return self.virtual


class _Selector(selectors.DefaultSelector):
    loop: _VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if found or timeout == 0:
            return found
        if timeout is None:  # threads may still have something to say
            return super().select(None)
        self.loop.virtual += timeout
        return found

"""A stand-in for another engine's server: one token of every request each few milliseconds.

python fake_engine.py TOKEN_SERVER_FOLDER SECONDS_PER_STEP ... --port N ...    what else is said it does not mind
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence


class Ticking:
    """Implements Engine."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._left: dict[int, int] = {}
        self._number = 0

    def add(self, ids: Sequence[int], tokens: int) -> int:  # noqa: ARG002 (Engine's)
        self._number += 1
        self._left[self._number] = tokens
        return self._number

    def step(self) -> Iterator[tuple[int, int, bool]]:
        time.sleep(self._seconds)
        for number in list(self._left):
            self._left[number] -= 1
            ended = self._left[number] == 0
            if ended:
                del self._left[number]
            yield number, 1, ended

    def cancel(self, handle: int) -> None:
        self._left.pop(handle, None)


if __name__ == "__main__":
    if "broken" in sys.argv:
        sys.exit("cannot read this model")
    sys.path.insert(0, sys.argv[1])
    from token_server import serve  # type: ignore[import-not-found]

    serve(Ticking(float(sys.argv[2])), int(sys.argv[sys.argv.index("--port") + 1]))

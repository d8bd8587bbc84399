"""The line protocol of drivers: a line of JSON when ready, then one for each that is read.

Standard library alone: other engines' interpreters import it too.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["answer", "token_ids"]

Values = dict[str, Any]


def answer(start: Callable[[], tuple[Values, Callable[[Values], Values]]]) -> None:
    """Start, say what ``start`` returns first, and answer each line with its function until standard input ends."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is not an answer

    def say(values: Values) -> None:
        out.write(json.dumps(values) + "\n")
        out.flush()

    try:
        ready, turn = start()
    except Exception as error:
        say({"error": f"{type(error).__name__}: {error}"})
        sys.exit(1)
    say(ready)
    for line in sys.stdin:
        try:
            say(turn(json.loads(line)))
        except Exception as error:
            say({"error": f"{type(error).__name__}: {error}"})


def token_ids(count: int, seed: int) -> list[int]:
    """Token ids below 30000 that look like none in particular; with another seed the first one differs."""
    return [(1 + seed * 101 + i * i * 7 + i) % 30000 for i in range(count)]

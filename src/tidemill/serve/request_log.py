"""One line of JSON per request: who, what, how it ended, how many tokens, how long. No prompt unless
the setting log_prompts asks for it, and never an answer."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TextIO

__all__ = ["RequestLog"]


class RequestLog:
    """Writes the lines. One that cannot be written is dropped: a full disk stops no answer."""

    def __init__(self, out: TextIO, wall_time: Callable[[], float] = time.time) -> None:
        self._out = out
        self._wall_time = wall_time

    def write(self, **fields: object) -> None:
        """One request; fields that are None are left out."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._wall_time()))
        kept = {name: value for name, value in fields.items() if value is not None}
        try:
            self._out.write(json.dumps({"time": now, **kept}, ensure_ascii=True) + "\n")
            self._out.flush()
        except (OSError, ValueError):
            return

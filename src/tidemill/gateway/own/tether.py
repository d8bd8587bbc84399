"""``python -m tidemill.gateway.own.tether PARENT ARGUMENTS...``: ``tidemill ARGUMENTS``, which ends when PARENT does.

A gateway that is killed cannot end its engines. On Linux the kernel tells them (prctl(2), PR_SET_PDEATHSIG); elsewhere
they stay.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

__all__ = ["main"]

_PR_SET_PDEATHSIG: Final = 1


def main() -> None:
    """Tie this process to its parent and become the engine."""
    parent, arguments = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it ended before it could be told
            sys.exit(1)
    os.execv(sys.executable, [sys.executable, "-m", "tidemill.cli", *arguments])


if __name__ == "__main__":
    main()

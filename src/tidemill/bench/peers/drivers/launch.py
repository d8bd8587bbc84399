"""Run a command so that the kernel ends it when whoever started this ends, however that ends (on Linux).

python launch.py PARENT COMMAND ...
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Become the command."""
    parent, *command = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):  # it ended before
        sys.exit("whoever started this has ended")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()

"""Fetching from Hugging Face: what is cached is used, and without a network that is said at once."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from tidemill.core.errors import ModelLoadError

__all__ = ["fetched"]

_OFFLINE = "this machine is offline, and no earlier download is cached"


def fetched(name: str, download: Callable[[bool], str], *, what: str, advice: str) -> Path:
    """What ``download`` returns, given whether only the cache may be used.

    Raises ModelLoadError naming ``what`` could not be had and why, with ``advice``, in one line.
    """
    online = _online()
    try:
        return Path(download(not online))
    except Exception as error:  # the hub client's errors have no common root: network, names, disk, access
        reason = (str(error).strip() or type(error).__name__).splitlines()[0] if online else _OFFLINE
        raise ModelLoadError(f"{name}: {what} cannot be fetched from Hugging Face ({reason}); {advice}") from error


def _online() -> bool:
    """Whether Hugging Face has an address here: without one, the hub client would try for half a minute."""
    host = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co")).hostname
    try:
        return bool(host and socket.getaddrinfo(host, 443))
    except OSError:
        return False

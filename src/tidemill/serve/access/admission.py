"""Who counts the requests of a key."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from tidemill.serve.access.allowance import Bill
from tidemill.serve.access.caller import Caller

__all__ = ["Admission", "OwnAdmission"]


class Admission(Protocol):
    """Lets requests in, as far as their keys' limits go."""

    def request(self, caller: Caller) -> AbstractAsyncContextManager[Bill]:
        """One request, from its headers to its end. Raises RateLimited, and then nothing has been counted."""
        ...


class OwnAdmission:
    """Implements Admission: this process counts by itself."""

    @asynccontextmanager
    async def request(self, caller: Caller) -> AsyncIterator[Bill]:
        """See Admission."""
        with caller.allowance.request() as bill:
            yield bill

"""Giving up a run early: whether the share of requests that is needed within objectives can still be reached."""

from __future__ import annotations

from tidemill.bench.figures.slo import Slo
from tidemill.bench.load.record import RequestRecord

__all__ = ["GaveUp", "Hope"]


class GaveUp(Exception):
    """So many requests missed the objectives that the share asked for cannot be reached any more."""

    def __init__(self, share: float, seconds: float) -> None:
        super().__init__(f"at most {share:.0%} of requests can be within the objectives")
        self.share = share
        """Of all requests, those that could still have been within the objectives."""
        self.seconds = seconds


class Hope:
    """Counts misses."""

    def __init__(self, slo: Slo | None, needed: float | None, requests: int) -> None:
        """``needed``: the share; without it, or without objectives, hope is never lost."""
        self._slo, self._needed, self._requests = slo, needed, requests
        self._missed = 0
        self.gone: GaveUp | None = None

    def lost(self, record: RequestRecord) -> bool:
        """A request has ended. True: with it the last hope went."""
        if self._slo is None or self._needed is None or self.gone is not None:
            return False
        self._missed += not self._slo.met(record)
        share = 1 - self._missed / self._requests
        if share < self._needed:
            self.gone = GaveUp(share, record.ended or record.due)
        return self.gone is not None

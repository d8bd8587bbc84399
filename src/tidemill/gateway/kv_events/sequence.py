"""Numbered messages in order, and what is missing among them. Knows nothing of sockets.

number = last + 1                          taken up
number > last + 1                          a gap: the replay is asked for what is between
number <= last, not newer than the last    has come by replay already
number <= last, newer                      another process, which began anew: what was known is forgotten
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tidemill.gateway.kv_events.wire import NotEvents, apply, batch_time
from tidemill.gateway.routing.told_blocks import ToldBlocks

__all__ = ["Sequencer"]

_log = logging.getLogger(__name__)


class Sequencer:
    """Feeds one index."""

    def __init__(self, name: str, told: ToldBlocks) -> None:
        """``name``: of the replica, for the log."""
        self._name = name
        self.told = told
        self._last = -1
        self._when = 0.0
        """When the last message was made."""
        self.unsure = True
        """Messages may be missing before the next."""

    def doubt(self) -> None:
        """The connection was lost, or the replica started anew: what is known is not believed any more."""
        self.told.lose()
        self._last, self._when, self.unsure = -1, 0.0, True

    def missing(self, number: int, payload: bytes) -> int | None:
        """The first number that has to be replayed before a message can be taken; None: nothing is missing."""
        if number <= self._last and self._begins_anew(payload):
            self.doubt()
        if self.unsure:
            return 0 if number else None
        return self._last + 1 if number > self._last + 1 else None

    def replayed(self, messages: Sequence[tuple[int, bytes]]) -> None:
        """What the replay had, in order: all of it is used if it begins where something is missing."""
        if self.unsure and messages and messages[0][0] == 0:
            self._last, self.unsure = -1, False
            self.told.clear()
        for number, payload in messages:
            if number == self._last + 1 and not self.unsure:
                self._take(number, payload)

    def take(self, number: int, payload: bytes) -> None:
        """A message, after what is missing was asked for. What is missing still is lost."""
        if number == 0:
            self.told.clear()
        elif self.unsure or number > self._last + 1:
            if self._last >= 0:
                _log.warning("%s: KV events up to number %d are lost; its prompts are guessed", self._name, number - 1)
            self.told.lose()
        elif number <= self._last:
            return
        self.unsure = False
        self._take(number, payload)

    def _begins_anew(self, payload: bytes) -> bool:
        try:
            return batch_time(payload) > self._when
        except NotEvents:
            return True

    def _take(self, number: int, payload: bytes) -> None:
        self._last = number
        try:
            self._when = batch_time(payload)
            apply(payload, self.told)
        except NotEvents as error:
            _log.warning("%s: KV events cannot be read: %s", self._name, error)
            self.told.lose()

"""Watching one request: a target says what comes and when, the record is filled, and the load may hang up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tidemill.bench.load.record import Arrived, Counted, Outcome, RequestRecord

__all__ = ["Piece", "Watch", "settle"]


@dataclass(frozen=True, slots=True)
class Piece:
    """One event that brought tokens."""

    at: float
    tokens: int | None
    """How many, where known."""
    weight: int
    """Characters of its text: its part of a total that is known only at the end."""


class Watch:
    """Fills one record. ``now`` gives seconds since the start of the run."""

    __slots__ = ("_cancel_after", "_come", "_now", "_output_tokens", "_pieces", "record")

    def __init__(self, record: RequestRecord, now: Callable[[], float], *, cancel_after: int | None = None) -> None:
        self.record = record
        self._now = now
        self._cancel_after = cancel_after
        self._pieces: list[Piece] = []
        self._come = 0
        self._output_tokens: int | None = None

    def sending(self) -> None:
        """The client takes the request up."""
        self.record.sent = self._now()

    def came(self, tokens: int | None, *, weight: int = 0) -> bool:
        """Generated tokens came, all at once; None: nobody says how many. True: hang up now."""
        self._pieces.append(Piece(self._now(), tokens, weight))
        self._come += 1 if tokens is None else tokens
        return self.hangs_up

    @property
    def hangs_up(self) -> bool:
        """True if the load wants no more of this answer."""
        return self._cancel_after is not None and self._come >= self._cancel_after

    def usage(self, *, prompt: int | None = None, output: int | None = None, cached: int | None = None) -> None:
        """What the server counted; None: it did not say. Later calls replace earlier ones."""
        if prompt is not None:
            self.record.prompt_tokens = prompt
        if output is not None:
            self._output_tokens = output
        if cached is not None:
            self.record.cached_tokens = cached

    def end(self, outcome: Outcome, error: str | None = None) -> None:
        """The outcome is known; the first call counts."""
        record = self.record
        if record.ended is not None:
            return
        record.ended = self._now()
        record.outcome = outcome
        record.error = None if error is None else " ".join(error.split())[:300]
        record.chunks = len(self._pieces)
        complete = outcome == "ok"
        total = self._output_tokens if complete else None
        stopped = record.finish_reason == "stop"
        record.arrived, record.counted = settle(self._pieces, total, end_token=stopped)
        record.output_tokens = record.arrived_tokens if total is None else total


def settle(pieces: Sequence[Piece], total: int | None, *, end_token: bool) -> tuple[list[Arrived], Counted]:
    """How many tokens came with each piece.

    ``total``: as the server counted them; with ``end_token`` it may count one that has no text. Where the pieces'
    own numbers are not known and the total is not one each, it is spread over them by the length of their text.
    """
    known = [piece.tokens for piece in pieces if piece.tokens is not None]
    if len(known) == len(pieces):
        return [Arrived(piece.at, piece.tokens) for piece in pieces if piece.tokens], "each"
    ones = [Arrived(piece.at, piece.tokens or 1) for piece in pieces]
    if not total:  # nobody said, or said there were none although text came
        return ones, "chunks"
    if total == len(pieces) or (end_token and total == len(pieces) + 1):
        return ones, "each"
    shares = _spread(total, [max(1, piece.weight) for piece in pieces])
    return [Arrived(piece.at, share) for piece, share in zip(pieces, shares, strict=True) if share], "spread"


def _spread(total: int, weights: Sequence[int]) -> list[int]:
    """Whole numbers with this sum, in proportion to the weights. The first and the last are at least 1, as far as the
    total allows, and so are all, if it is as large as they are many."""
    whole, reached = sum(weights), [0]
    for weight in weights:
        reached.append(reached[-1] + weight)
    shares = [
        (2 * total * after + whole) // (2 * whole) - (2 * total * before + whole) // (2 * whole)
        for before, after in pairwise(reached)
    ]
    wanted = range(len(shares)) if total >= len(shares) else [0, len(shares) - 1][:total]
    for place in wanted:
        if shares[place] == 0:
            giver = max((i for i in range(len(shares)) if i not in wanted or shares[i] > 1), key=shares.__getitem__)
            shares[giver] -= 1
            shares[place] = 1
    return shares

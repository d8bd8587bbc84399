"""What became of drafts, in numbers."""

from __future__ import annotations

from collections import Counter

__all__ = ["DraftCounts"]


class DraftCounts:
    """Running totals."""

    def __init__(self) -> None:
        self.jumped = 0
        """Forced tokens that took no step of their own."""
        self.asked = self.hit = 0
        """Tokens of sequences that proposers compute to guess and could share, and those whose KV was there."""
        self.drafts: Counter[str] = Counter()
        """Drafts that were computed, by kind; and of their tokens, those proposed and those right."""
        self.proposed: Counter[str] = Counter()
        self.accepted: Counter[str] = Counter()
        self.proposed_at: Counter[str] = Counter()
        """Proposed tokens by their place in the draft, from 0 on: how long drafts were. And those right."""
        self.accepted_at: Counter[str] = Counter()

    def add(self, kind: str, proposed: int, accepted: int) -> None:
        """Count a draft."""
        self.drafts[kind] += 1
        self.proposed[kind] += proposed
        self.accepted[kind] += accepted
        for place in range(proposed):
            self.proposed_at[str(place)] += 1
        for place in range(accepted):
            self.accepted_at[str(place)] += 1

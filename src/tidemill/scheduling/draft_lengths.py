"""How many tokens to propose for a sequence: as many as pay, which may be none.

A step of ``B`` answers takes T(B) seconds and gives B tokens. With k proposals more for a sequence whose proposals are
right with probability a each, as long as all before them are, it takes T(B + k) and gives a + a^2 + .. + a^k more:

    k is the one that makes  (tokens so far + a + .. + a^k) / (T(rows so far + k) + k x seconds to propose one)  largest

T is measured while steps run (``step_costs``), a is what became of the sequence's latest proposals, beginning with
what is usual. Where none pays, two are tried now and then, each time after twice as many tokens, to see whether the
text has become another; after the longest wait at once, where it would not pay even if all were right.

What is chosen decides how fast answers come, never what they say. Pure: integers and durations in, lengths out.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from statistics import median
from typing import Final, Protocol

from tidemill.scheduling.step_costs import StepCosts

__all__ = ["Acceptance", "AdaptiveLengths", "FixedLengths", "Lengths"]

_FADING: Final = 0.85
"""Weight of what was before, at each settled draft."""
_PRIOR_TOKENS: Final = 3.0
"""As many tokens the usual rate counts for, with a new sequence."""
_FIRST_RATE: Final = 0.6
_LEAST_MEASURED: Final = 3
_PROBE: Final = 2
_FIRST_WAIT: Final = 16
_LONGEST_WAIT: Final = 512
_PAYS: Final = 1.02
"""By so much it has to be faster, as far as can be known, than without."""


class Acceptance:
    """What became of one sequence's proposals of one kind."""

    def __init__(self, usual: float) -> None:
        self._right = usual * _PRIOR_TOKENS
        self._seen = _PRIOR_TOKENS
        self.skipped = 0
        """Steps without a proposal since the last one, because none paid."""
        self.wait = _FIRST_WAIT
        """So many such steps until one is tried all the same."""

    @property
    def rate(self) -> float:
        """How probable it is that a proposal is right where those before it are."""
        return self._right / self._seen

    def add(self, proposed: int, accepted: int) -> None:
        """Of a draft of so many tokens so many were right. What is behind the first wrong one says nothing."""
        self._right = self._right * _FADING + accepted
        self._seen = self._seen * _FADING + min(proposed, accepted + 1)


class Lengths(Protocol):
    """Chooses lengths, step by step: ``begin``, then for each sequence ``most`` and ``take``."""

    def begin(self, answers: int) -> None:
        """A step in which so many answers go on is being planned."""
        ...

    def most(self, kind: str, acceptance: Acceptance, limit: int) -> int:
        """How many tokens to propose, at most ``limit``."""
        ...

    def take(self, kind: str, acceptance: Acceptance, count: int) -> None:
        """So many were proposed."""
        ...

    def acceptance(self, kind: str) -> Acceptance:
        """What a new sequence begins with."""
        ...

    def settle(self, kind: str, acceptance: Acceptance, proposed: int, accepted: int) -> None:
        """Say what became of a draft."""
        ...

    def drafted(self, kind: str, tokens: int, seconds: float) -> None:
        """It has taken so long to propose so many tokens."""
        ...

    def observe(self, answers: int, tokens: int, seconds: float) -> None:
        """A step in which answers alone went on, with so many tokens, has taken so long, proposing aside."""
        ...


class FixedLengths:
    """Always as many as there may be: the slow twin of choosing."""

    def __init__(self, most: int) -> None:
        self._most = most

    def begin(self, answers: int) -> None:
        """See Lengths."""

    def most(self, kind: str, acceptance: Acceptance, limit: int) -> int:  # noqa: ARG002
        """See Lengths."""
        return min(self._most, limit)

    def take(self, kind: str, acceptance: Acceptance, count: int) -> None:
        """See Lengths."""

    def acceptance(self, kind: str) -> Acceptance:  # noqa: ARG002
        """See Lengths."""
        return Acceptance(_FIRST_RATE)

    def settle(self, kind: str, acceptance: Acceptance, proposed: int, accepted: int) -> None:
        """See Lengths."""

    def drafted(self, kind: str, tokens: int, seconds: float) -> None:
        """See Lengths."""

    def observe(self, answers: int, tokens: int, seconds: float) -> None:
        """See Lengths."""


class AdaptiveLengths:
    """The lengths that pay."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._costs = StepCosts()
        self._usual: dict[str, Acceptance] = defaultdict(lambda: Acceptance(_FIRST_RATE))
        self._draft_seconds: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=7))
        self._seconds: dict[int, float] = {}
        """By rows: what the step that is being planned would take; the same sizes are looked at for each sequence."""
        self._answers = 0
        self._rows = 0
        self._tokens = 0.0
        self._drafting = 0.0

    def begin(self, answers: int) -> None:
        """See Lengths."""
        self._seconds.clear()
        self._answers = self._rows = answers
        self._tokens = float(answers)
        self._drafting = 0.0

    def most(self, kind: str, acceptance: Acceptance, limit: int) -> int:
        """See Lengths."""
        limit = min(limit, self._most)
        best = self._best(kind, acceptance.rate, limit)
        if best:
            acceptance.wait = self._usual[kind].wait = _FIRST_WAIT
            return best
        acceptance.skipped += 1
        if acceptance.skipped < acceptance.wait:
            return 0
        if acceptance.wait < _LONGEST_WAIT and not self._best(kind, 1.0, limit):
            acceptance.wait = _LONGEST_WAIT  # not even if all were right
            return 0
        return min(_PROBE, limit)

    def _best(self, kind: str, rate: float, limit: int) -> int:
        best, gained, chance = 0, 0.0, 1.0
        each = self._seconds_to_draft(kind)
        speed = _PAYS * self._tokens / (self._step_seconds(self._rows) + self._drafting)
        for count in range(1, limit + 1):
            chance *= rate
            gained += chance
            seconds = self._step_seconds(self._rows + count) + self._drafting + count * each
            if (self._tokens + gained) / seconds > speed:
                best, speed = count, (self._tokens + gained) / seconds
        return best

    def _step_seconds(self, rows: int) -> float:
        seconds = self._seconds.get(rows)
        if seconds is None:
            seconds = self._seconds[rows] = self._costs.seconds(self._answers, rows)
        return seconds

    def take(self, kind: str, acceptance: Acceptance, count: int) -> None:
        """See Lengths."""
        rate = acceptance.rate
        self._rows += count
        self._tokens += sum(rate**place for place in range(1, count + 1))
        self._drafting += count * self._seconds_to_draft(kind)

    def acceptance(self, kind: str) -> Acceptance:
        """See Lengths: it is tried as often as the last one that was."""
        new = Acceptance(self._usual[kind].rate)
        new.wait = self._usual[kind].wait
        return new

    def settle(self, kind: str, acceptance: Acceptance, proposed: int, accepted: int) -> None:
        """See Lengths. After a try the next one comes later, unless by then it pays."""
        if acceptance.skipped >= acceptance.wait:
            acceptance.wait = self._usual[kind].wait = min(2 * acceptance.wait, _LONGEST_WAIT)
        acceptance.skipped = 0
        acceptance.add(proposed, accepted)
        self._usual[kind].add(proposed, accepted)

    def drafted(self, kind: str, tokens: int, seconds: float) -> None:
        """See Lengths."""
        self._draft_seconds[kind].append(seconds / tokens)

    def observe(self, answers: int, tokens: int, seconds: float) -> None:
        """See Lengths."""
        self._costs.add(answers, tokens, seconds)

    def _seconds_to_draft(self, kind: str) -> float:
        """Of one token, beside what steps take: nothing until both are measured, this some times. A draft model's first
        guess for a sequence has the whole prompt in it."""
        measured: Sequence[float] = self._draft_seconds[kind]
        enough = len(measured) >= _LEAST_MEASURED and self._costs.known(self._answers)
        return median(measured) if enough else 0.0

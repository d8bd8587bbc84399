"""What steps take in which answers alone go on, by how many answers they are and how many tokens."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Final

__all__ = ["StepCosts"]

_KEPT: Final = 7
"""Latest measurements of a size, of which the median counts: a stall is not believed."""
_FORGOTTEN: Final = 1000
"""A size that has not been measured in so many steps of as many answers is not believed any more."""
_FREE_ROWS: Final = 7
"""Where nothing is known: a token more costs as much as the answers do, over their number and so many more. Weights are
read once for all tokens of a step, so few tokens more cost little."""


class _Sizes:
    """Steps of one number of answers."""

    def __init__(self, answers: int) -> None:
        self._answers = answers
        self._steps = 0
        self._seconds: dict[int, tuple[deque[float], int]] = {}

    def add(self, tokens: int, seconds: float) -> None:
        self._steps += 1
        kept, _ = self._seconds.get(tokens, (deque(maxlen=_KEPT), 0))
        kept.append(seconds)
        self._seconds[tokens] = (kept, self._steps)

    def seconds(self, tokens: int) -> float:
        below: tuple[int, float] | None = None
        above: tuple[int, float] | None = None
        for size, (kept, at) in self._seconds.items():
            if self._steps - at > _FORGOTTEN:
                continue
            if size <= tokens and (below is None or size > below[0]):
                below = (size, median(kept))
            if size >= tokens and (above is None or size < above[0]):
                above = (size, median(kept))
        slope = 1.0 / (self._answers + _FREE_ROWS)
        if below and above:
            (x0, y0), (x1, y1) = below, above
            return y0 if x0 == x1 else y0 + max(0.0, y1 - y0) * (tokens - x0) / (x1 - x0)
        size, seconds = below or above or (self._answers, 1.0)
        return seconds * (1 + slope * (tokens - self._answers)) / (1 + slope * (size - self._answers))


class StepCosts:
    """Tables of measured steps."""

    def __init__(self) -> None:
        self._sizes: dict[int, _Sizes] = {}

    def add(self, answers: int, tokens: int, seconds: float) -> None:
        """A step of so many answers and tokens has taken so long."""
        if answers not in self._sizes:
            self._sizes[answers] = _Sizes(answers)
        self._sizes[answers].add(tokens, seconds)

    def seconds(self, answers: int, tokens: int) -> float:
        """What such a step takes; where none of so many answers was measured, what it takes beside one that has a
        token for each, which is then 1."""
        return (self._sizes.get(answers) or _Sizes(answers)).seconds(tokens)

    def known(self, answers: int) -> bool:
        """True if any step of so many answers was measured."""
        return answers in self._sizes

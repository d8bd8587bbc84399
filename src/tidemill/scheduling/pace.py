"""How many tokens a step may have and how many sequences may run, so that answers go on at the pace that is asked for.

What steps take is measured while they run, in three tables of (tokens, seconds), since the parts of a step cost
differently: steps in which answers alone go on, by their tokens; what prompts added to such steps, by their tokens; and
steps of prompts alone. An answer has one token in a step, and those that it guesses. A step in which answers go on may
then take

    tokens of answers + as many of prompts as fit  min(target - answers alone, share x target)

seconds, and so many sequences may run as go on together within the target; they may guess as many tokens as it has room
for besides. A step of prompts alone holds up nobody and has all of ``max_step_tokens``. A few tokens of prompts go into
every step, whatever it takes, so that prompts end. Where even a step of few answers is longer than the target, prompts
get as much time as the answers, times the share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from tidemill.core.config import SchedulerConfig
from tidemill.scheduling.schedule import Schedule

__all__ = ["MeasuredSteps", "Pace"]

_FLOOR: Final = 8
"""Tokens of prompts that a step has at least, where there are any."""
_UNKNOWN: Final = 32
"""The same while it is not known what they take."""
_PER_DOUBLING: Final = 2
"""Cells of a table between a number of tokens and twice as many."""
_WEIGHT: Final = 0.15
"""Of the latest measurement in a cell's mean."""
_DEVIATIONS: Final = 2
_FORGOTTEN: Final = 1000
"""A cell that has not been measured in so many steps is not believed any more."""


@dataclass(slots=True)
class _Cell:
    """Running means of the steps of about one size."""

    tokens: float
    seconds: float
    deviation: float
    """Of the seconds from their mean, without its sign."""
    at: int
    """The number of the latest one."""


class MeasuredSteps:
    """A table. What it says is on the safe side of most steps: a mean and two mean deviations. More tokens are never
    taken to need less time, and more than the most that were measured need time in proportion: in truth it is less, so
    whoever goes up by this is never too fast."""

    def __init__(self) -> None:
        self._cells: dict[int, _Cell] = {}
        self._steps = 0

    def add(self, tokens: int, seconds: float) -> None:
        """A step of so many tokens has taken so long."""
        self._steps += 1
        key = round(_PER_DOUBLING * math.log2(tokens))
        cell = self._cells.get(key)
        if cell is None or self._steps - cell.at > _FORGOTTEN:
            self._cells[key] = _Cell(tokens, seconds, 0.0, self._steps)
            return
        cell.tokens += _WEIGHT * (tokens - cell.tokens)
        cell.deviation += _WEIGHT * (abs(seconds - cell.seconds) - cell.deviation)
        cell.seconds += _WEIGHT * (seconds - cell.seconds)
        cell.at = self._steps

    def seconds(self, tokens: float) -> float | None:
        """What so many tokens take; None: nothing was measured."""
        points = self._points()
        if not points or tokens <= 0:
            return None if not points else 0.0
        x0, y0 = 0.0, points[0][1]  # a small step costs what the smallest measured one did
        for x1, y1 in points:
            if tokens <= x1:
                return y0 + (y1 - y0) * (tokens - x0) / (x1 - x0)
            x0, y0 = x1, y1
        return y0 * tokens / x0

    def within(self, seconds: float, most: int) -> int | None:
        """The most tokens, up to ``most``, that take no longer than that; None: nothing was measured."""
        if (whole := self.seconds(most)) is None:
            return None
        if whole <= seconds:
            return most
        low, high = 0, most
        while high - low > 1:
            middle = (low + high) // 2
            found = self.seconds(middle)
            assert found is not None
            low, high = (middle, high) if found <= seconds else (low, middle)
        return low

    @property
    def fastest(self) -> float:
        """The fewest seconds per token; 0: nothing was measured."""
        return min((seconds / tokens for tokens, seconds in self._points()), default=0.0)

    @property
    def shortest(self) -> float:
        """The seconds of the shortest step; 0: nothing was measured."""
        return min((seconds for _, seconds in self._points()), default=0.0)

    def _points(self) -> list[tuple[float, float]]:
        """(tokens, seconds), rising in both: what took longer than more tokens did is taken for noise."""
        found = [
            (one.tokens, one.seconds + _DEVIATIONS * one.deviation)
            for one in self._cells.values()
            if self._steps - one.at <= _FORGOTTEN
        ]
        found.sort()
        least = math.inf
        for place in reversed(range(len(found))):
            least = min(least, found[place][1])
            found[place] = (found[place][0], least)
        return found


class Pace:
    """Budget and concurrency of one scheduler."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._answers = MeasuredSteps()
        self._added = MeasuredSteps()
        self._prompts = MeasuredSteps()

    @property
    def on(self) -> bool:
        """True if there is a target."""
        return self._config.itl_target > 0

    def budget(self, answers: int) -> int:
        """Tokens of a step in which answers go on with so many, these included."""
        most = self._config.max_step_tokens
        if not self.on or not answers:
            return most
        target = self._config.itl_target
        alone = self._answers.seconds(answers) or 0.0
        share = self._config.prefill_share
        spare = share * alone if self._out_of_reach else min(target - alone, share * target)
        prompts = self._added.within(max(spare, 0.0), most)
        return min(most, answers + (_UNKNOWN if prompts is None else max(prompts, _FLOOR)))

    def most_answer_tokens(self, most: int) -> int:
        """Tokens that answers go on with in a step, and so the sequences that may run, at least one and at most
        ``most``; all where even a step of few is longer than the target: fewer would not make it good."""
        if not self.on or self._out_of_reach:
            return most
        found = self._answers.within(self._config.itl_target, most)
        return most if found is None else max(found, 1)

    @property
    def _out_of_reach(self) -> bool:
        """True if even the shortest step of answers alone takes longer than the target."""
        return self._answers.shortest > self._config.itl_target

    def observe(self, schedule: Schedule, seconds: float) -> None:
        """A step has taken so long."""
        prompts = schedule.num_tokens - schedule.num_answer_tokens
        answers = schedule.num_answer_tokens
        if not prompts and answers:
            self._answers.add(answers, seconds)
        elif prompts and not answers:
            self._prompts.add(prompts, seconds)
        elif prompts:
            self._added.add(prompts, max(0.0, seconds - (self._answers.seconds(answers) or 0.0)))

    def least_seconds(self, prompt: int, answer: int) -> float:
        """The least time that so many tokens of a prompt and then of its answer take, as far as it was measured."""
        steps = -(-max(0, answer - 1) // self._config.most_tokens_per_step)
        return prompt * self._prompts.fastest + steps * self._answers.shortest

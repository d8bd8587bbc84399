"""What one rendering of a chat template may still use: rounds, text made, text looked at, and time.

Knows nothing of Jinja's nodes. Everything that is asked of it while no rendering runs (Jinja folds constants when it
compiles) is held to the same limits for itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from jinja2.exceptions import SecurityError

from tidemill.core.clock import Clock

__all__ = [
    "ITEM",
    "MAX_CHARACTERS",
    "MAX_ITEMS",
    "MAX_READ",
    "Budget",
    "another_round",
    "charge",
    "charge_items",
    "charge_whole",
    "read",
    "read_whole",
    "spending",
]

MAX_CHARACTERS = 64 * 2**20
MAX_READ = 256 * 2**20
"""Characters that one operation may look at: some tenths of a second, and nothing can stop it meanwhile."""
MAX_ROUNDS = 1_000_000
MAX_ITEMS = 1_000_000
ITEM = 16
"""What a place in a list counts for, in characters."""


class Budget:
    """What one rendering may still use. Raises SecurityError where it is used up."""

    def __init__(self, clock: Clock, *, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._deadline = clock.now() + seconds
        self._rounds = MAX_ROUNDS
        self._characters = MAX_CHARACTERS

    def round(self, characters: int) -> None:
        """One more round of a loop or call of a macro or filter, whose constant text has this length."""
        self._rounds -= 1
        if self._rounds < 0:
            raise SecurityError(f"it loops more than {MAX_ROUNDS} times")
        self.charge(characters)

    def charge(self, characters: int) -> None:
        """Text of this length is about to be made."""
        self._characters -= characters
        _check_made(MAX_CHARACTERS - self._characters)
        self.check_time()

    def check_time(self) -> None:
        """Called before every piece of work."""
        if self._clock.now() > self._deadline:
            raise SecurityError(f"it takes longer than {self._seconds:g} s")


_budget: ContextVar[Budget] = ContextVar("template_budget")


@contextmanager
def spending(budget: Budget) -> Iterator[None]:
    """What happens inside, in this thread or task, is charged to the budget."""
    token = _budget.set(budget)
    try:
        yield
    finally:
        _budget.reset(token)


def another_round(characters: int = 0) -> None:
    """One more round of a loop."""
    budget = _budget.get(None)
    if budget is not None:
        budget.round(characters)


def charge(characters: int) -> None:
    """Text of this length is about to be made."""
    budget = _budget.get(None)
    if budget is not None:
        budget.charge(characters)
    else:
        _check_made(characters)


def charge_items(count: int) -> None:
    """A list of so many items is about to be made, its items being there already."""
    if count > MAX_ITEMS:
        raise SecurityError(f"it makes a list of more than {MAX_ITEMS} items")
    charge(ITEM * count)


def charge_whole(value: Any) -> None:
    """Charge for everything in a value, parts that occur twice counted twice, as printing them would."""
    for length in _lengths(value):
        charge(length)


def read(characters: int) -> None:
    """One operation is about to look at so many characters."""
    if characters > MAX_READ:
        raise SecurityError(f"it looks at more than {MAX_READ} characters at once")
    budget = _budget.get(None)
    if budget is not None:
        budget.check_time()


def read_whole(value: Any) -> None:
    """One operation is about to look at everything in a value."""
    total = 0
    for length in _lengths(value):
        total += length
        read(total)


def _check_made(characters: int) -> None:
    if characters > MAX_CHARACTERS:
        raise SecurityError(f"it makes more than {MAX_CHARACTERS} characters of text")


def _lengths(value: Any) -> Iterator[int]:
    """The lengths of all texts in a value, and 1 for everything else in it."""
    if isinstance(value, str):
        yield len(value)
        return
    stack = [value]
    while stack:
        item = stack.pop()
        yield len(item) if isinstance(item, str) else 1
        if isinstance(item, Mapping):
            stack.extend(item)
            stack.extend(item.values())
        elif isinstance(item, list | tuple):
            stack.extend(item)

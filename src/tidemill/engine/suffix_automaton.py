"""A suffix automaton of texts: finds, token by token, the longest end of a text that is anywhere in them.

    a state is a set of substrings that end at the same places; ``link`` leads to its longest suffix in another state

Built online in linear time (Blumer et al. 1985), at most two states and three transitions per token. Following a text
costs a constant per token on average: where it cannot go on, links lead to shorter ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["Match", "SuffixAutomaton"]

_END: Final = -1
"""Between texts; no text has it."""
_RECENT: Final = 8
"""So many of the ends of a new token are told that it is their latest place: the longest ones, which count."""


@dataclass(slots=True)
class Match:
    """The longest end of a text that an automaton has. It holds until texts are added."""

    state: int = 0
    length: int = 0


class SuffixAutomaton:
    """Texts that are added, and never taken out."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        self._place = [0]
        """By state: where its substrings ended, one of the places."""
        self._last = 0

    def __len__(self) -> int:
        """Tokens, an end of each text included."""
        return len(self._tokens)

    def add(self, text: Iterable[int]) -> None:
        """Add a text of token ids."""
        for token in text:
            self._extend(token)
        self._extend(_END)

    def follow(self, match: Match, tokens: Iterable[int]) -> None:
        """Move a match over the tokens that follow it."""
        for token in tokens:
            while match.state and token not in self._next[match.state]:
                match.state = self._link[match.state]
                match.length = self._length[match.state]
            if token in self._next[match.state]:
                match.state = self._next[match.state][token]
                match.length += 1

    def after(self, match: Match, limit: int) -> Sequence[int]:
        """At most so many tokens that followed, in one place, what matches."""
        place = self._place[match.state]
        found = self._tokens[place : place + limit]
        return found[: found.index(_END)] if _END in found else found

    def _extend(self, token: int) -> None:
        self._tokens.append(token)
        new = self._new(self._length[self._last] + 1, {})
        state = self._last
        while state >= 0 and token not in self._next[state]:
            self._next[state][token] = new
            state = self._link[state]
        self._link[new] = 0 if state < 0 else self._suffix_state(state, token)
        self._last = new
        self._note(new)

    def _suffix_state(self, state: int, token: int) -> int:
        """The state of what ``state`` and the token make, split off from one that has longer substrings too."""
        target = self._next[state][token]
        if self._length[target] == self._length[state] + 1:
            return target
        twin = self._new(self._length[state] + 1, dict(self._next[target]))
        self._link[twin], self._place[twin] = self._link[target], self._place[target]
        self._link[target] = twin
        while state >= 0 and self._next[state].get(token) == target:
            self._next[state][token] = twin
            state = self._link[state]
        return twin

    def _new(self, length: int, following: dict[int, int]) -> int:
        self._next.append(following)
        self._link.append(-1)
        self._length.append(length)
        self._place.append(len(self._tokens))
        return len(self._next) - 1

    def _note(self, state: int) -> None:
        place = len(self._tokens)
        for _ in range(_RECENT):
            if state <= 0:
                return
            self._place[state] = place
            state = self._link[state]

"""Stop strings in a stream of text.

The text of an answer ends before the first stop string that is *completed*, reading from the left; where several end
at the same character, the longest counts. So the answer does not depend on how the text was cut into pieces, and
generation never goes on in the hope of a longer match.

    text     ..... released ..... | held: may still become a stop | not here yet

What is held is the longest end of the text that is a beginning of some stop string, and nothing else. It is found with
one automaton over all stop strings (Aho and Corasick, 1975): constant work per character, however many stops there are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Released", "StopMatcher"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """What one push sets free."""

    text: str = ""
    tokens: int = 0
    """How many further tokens, in the order pushed, belong to the released text: those that begin before its end."""
    stop: str | None = None
    """The stop string that was completed; nothing is released after it."""


class StopMatcher:
    """Feed it each token's text in order; pass on what it releases."""

    def __init__(self, stops: Sequence[str] = ()) -> None:
        if not all(stops):
            raise ValueError("stop strings must not be empty")
        self._automaton = _Automaton(stops) if stops else None
        self._state = 0
        self._held = ""
        self._starts: deque[tuple[int, int]] = deque()
        self.released = 0
        """Characters released so far."""
        self.released_tokens = 0
        """Tokens released so far."""
        self.stop: str | None = None
        """The stop string that ended the text, if one did."""

    def push(self, text: str, tokens: int = 1) -> Released:
        """Add text that ``tokens`` tokens brought (they are counted as one); after a stop nothing is added."""
        if self.stop is not None:
            return Released()
        self._starts.append((self.released + len(self._held), tokens))
        text = self._held + text
        if self._automaton is None:
            return self._release(text, held="")
        scanned = len(self._held)
        for end in range(scanned, len(text)):
            self._state, stop = self._automaton.step(self._state, text[end])
            if stop is not None:
                self.stop = stop
                return self._release(text[: end + 1 - len(stop)], held="")
        cut = len(text) - self._automaton.depth[self._state]
        return self._release(text[:cut], held=text[cut:])

    def flush(self) -> Released:
        """At the end of generation: what was held, for it did not become a stop."""
        if self.stop is not None:
            return Released()
        self._state = 0
        released = self._release(self._held, held="")
        rest = sum(tokens for _, tokens in self._starts)
        self._starts.clear()
        self.released_tokens += rest
        return Released(text=released.text, tokens=released.tokens + rest)

    def _release(self, text: str, *, held: str) -> Released:
        self._held = held
        self.released += len(text)
        tokens = 0
        # Tokens without text of their own wait until text after them is released: a stop may end right there.
        while self._starts and self._is_released(held):
            tokens += self._starts.popleft()[1]
        self.released_tokens += tokens
        return Released(text=text, tokens=tokens, stop=self.stop)

    def _is_released(self, held: str) -> bool:
        start = self._starts[0][0]
        if self.stop is not None:
            return start < self.released
        end = self._starts[1][0] if len(self._starts) > 1 else self.released + len(held)
        return start < self.released and end <= self.released


class _Automaton:
    """States are the beginnings of all stop strings; state 0 is the empty one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.depth = [0]
        """Per state: length of the beginning it stands for."""
        self._next: list[dict[str, int]] = [{}]
        self._fail = [0]
        self._stop: list[str | None] = [None]
        for stop in stops:
            self._insert(stop)
        self._link()

    def step(self, state: int, character: str) -> tuple[int, str | None]:
        """The next state, and the longest stop string that ends with this character."""
        while (following := self._next[state].get(character)) is None:
            if state == 0:
                return 0, None
            state = self._fail[state]
        return following, self._stop[following]

    def _insert(self, stop: str) -> None:
        state = 0
        for character in stop:
            if character not in self._next[state]:
                self._next[state][character] = len(self._next)
                self._next.append({})
                self.depth.append(self.depth[state] + 1)
                self._fail.append(0)
                self._stop.append(None)
            state = self._next[state][character]
        self._stop[state] = stop

    def _link(self) -> None:
        """Per state, the longest proper end of it that is a state too; breadth first, so that shorter ones are done."""
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            for character, child in self._next[state].items():
                self._fail[child], shorter = self.step(self._fail[state], character)
                self._stop[child] = self._stop[child] or shorter
                queue.append(child)

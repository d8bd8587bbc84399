"""The text of one choice as its tokens arrive: detokenised, cut at stop strings, with the tokens that belong to it.

    tokens      t0    t1     t2       t3            each begins where the text before it ended
    text        |Once | upon| a |  END OF|...
    shown       |<-- released ->|  held back        what may still become a stop string, or half a character
                                ^ cut               a stop string found: the answer ends here, and so do its tokens

A token belongs to the answer if it begins before the cut. So the text, the log-probabilities and the token count end
at the same place, streamed or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tidemill.core.step import TokenLogprob
from tidemill.core.tokens import FinishReason, TokenDelta
from tidemill.frontend.text import Detokenizer
from tidemill.text.stops import StopMatcher

__all__ = ["CallDelta", "ChoiceText", "PlacedToken", "TextDelta"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedToken:
    """A generated token's log-probabilities and where its text begins."""

    logprob: TokenLogprob
    start: int
    """Characters of the choice's text before this token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallDelta:
    """A call, complete."""

    index: int
    """Of the choice's calls, from 0 on."""
    id: str
    name: str
    arguments: str
    """A JSON object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """What one token delta adds to what the caller sees."""

    text: str = ""
    tokens: tuple[PlacedToken, ...] = ()
    """Where log-probabilities are on: the tokens of ``text``, no earlier and no later than the text itself."""
    starts: tuple[int, ...] = ()
    """Where places are on: characters before each token that came, shown yet or not."""
    reasoning: str = ""
    """Text of the reasoning, where an answer is told apart."""
    calls: tuple[CallDelta, ...] = ()
    """Calls of functions, where an answer is told apart."""
    finish: FinishReason | None = None
    stop: str | int | None = None
    """With the finish: the stop string, or the token of stop_token_ids, that ended the choice."""
    ending: PlacedToken | None = None
    """With the finish, where log-probabilities are on: the end token that ended the choice, which has no text."""
    prompt: tuple[TokenLogprob, ...] | None = None
    """With the first delta: the log-probabilities of the prompt's tokens but the first, where they were asked for."""


class ChoiceText:
    """One choice from its first token to its end. Knows nothing of requests or formats."""

    def __init__(
        self,
        *,
        detokenizer: Detokenizer,
        stops: Sequence[str] = (),
        min_tokens: int = 0,
        stop_tokens: Sequence[int] = (),
        places: bool = False,
    ) -> None:
        """``min_tokens``: stop strings are looked for in the text of the tokens behind these. ``stop_tokens``: end
        tokens that the caller named, and is told of. ``places``: deltas say where each token begins."""
        self._places = places
        self._stop_tokens = frozenset(stop_tokens)
        self._min_tokens = min_tokens
        self._detokenizer = detokenizer
        self._matcher = StopMatcher(stops) if stops else None
        self._length = 0  # characters detokenised
        self._shown = 0  # characters released
        self._count = 0
        self._starts: list[int] = []  # per token: characters before it; kept where a stop string may cut
        self._held: list[PlacedToken] = []  # tokens whose text is not released yet
        self._end_tokens = 0
        self.finish: FinishReason | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens of the answer so far; after the end: those of the text, plus the end token if one ended it."""
        return self._count + self._end_tokens

    def push(self, delta: TokenDelta) -> TextDelta:
        """Add a delta's tokens; after ``finish`` is set, call no more."""
        if self._matcher is None and delta.logprobs is None and not self._places:
            return self._plain(delta)
        known = len(self._starts)
        shown = self._placed(delta)
        return replace(shown, starts=tuple(self._starts[known:])) if self._places else shown

    def _placed(self, delta: TokenDelta) -> TextDelta:
        """Token by token."""
        shown: list[str] = []
        logprobs: Sequence[TokenLogprob | None] = delta.logprobs or (None,) * len(delta.tokens)
        for token, logprob in zip(delta.tokens, logprobs, strict=True):
            self._place(logprob)
            if self._show(self._detokenizer.push((token,)), shown):
                return self._ended(FinishReason.STOP, shown)
        if delta.finish_reason is None:
            return TextDelta(text="".join(shown), tokens=self._release(self._shown))
        if self._show(self._detokenizer.flush(), shown):
            return self._ended(FinishReason.STOP, shown)
        if self._matcher is not None:
            self._take(self._matcher.flush().text, shown)
        self._end_tokens = int(delta.stop_token is not None)
        self.finish = delta.finish_reason
        released = self._release(None)
        ending = None if delta.stop_logprob is None else PlacedToken(logprob=delta.stop_logprob, start=self._length)
        return TextDelta(
            text="".join(shown), tokens=released, finish=self.finish, stop=self._named(delta), ending=ending
        )

    def _plain(self, delta: TokenDelta) -> TextDelta:
        """Where nothing can cut the text and no token is shown with its place: the text, and how many tokens."""
        self._count += len(delta.tokens)
        text = self._detokenizer.push(delta.tokens)
        if delta.finish_reason is not None:
            text += self._detokenizer.flush()
            self._end_tokens = int(delta.stop_token is not None)
            self.finish = delta.finish_reason
        self._length += len(text)
        self._shown = self._length
        tokens = self._release(None if self.finish else self._shown) if self._held else ()
        return TextDelta(text=text, tokens=tokens, finish=self.finish, stop=self._named(delta))

    def _named(self, delta: TokenDelta) -> int | None:
        """The end token of a delta, if the caller named it."""
        return delta.stop_token if delta.stop_token in self._stop_tokens else None

    def _place(self, logprob: TokenLogprob | None) -> None:
        self._count += 1
        self._starts.append(self._length)
        if logprob is not None:
            self._held.append(PlacedToken(logprob=logprob, start=self._length))

    def _show(self, text: str, shown: list[str]) -> bool:
        """Pass text through the stop matcher; True if a stop string was found."""
        self._length += len(text)
        if self._matcher is None or len(self._starts) <= self._min_tokens:
            self._take(text, shown)
            return False
        released = self._matcher.push(text)
        self._take(released.text, shown)
        return released.stop is not None

    def _take(self, text: str, shown: list[str]) -> None:
        self._shown += len(text)
        shown.append(text)

    def _ended(self, reason: FinishReason, shown: list[str]) -> TextDelta:
        """The text ends at what has been shown: tokens that begin later are not part of the answer."""
        while self._starts and self._starts[-1] >= self._shown:
            self._starts.pop()
            self._count -= 1
        self.finish = reason
        tokens = self._release(self._shown)
        self._held.clear()
        stop = self._matcher.stop if self._matcher is not None else None
        return TextDelta(text="".join(shown), tokens=tokens, finish=reason, stop=stop)

    def _release(self, end: int | None) -> tuple[PlacedToken, ...]:
        """Tokens that begin before ``end`` (None: all of them) and were not released before."""
        count = len(self._held)
        if end is not None:
            count = next((i for i, token in enumerate(self._held) if token.start >= end), count)
        released = tuple(self._held[:count])
        del self._held[:count]
        return released

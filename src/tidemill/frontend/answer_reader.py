"""One choice's text told apart into reasoning, content and calls, each with the tokens that it came from.

    text       |<think>| Let me see. |</think>| It is high. |<tool_call>{...}</tool_call>|
    pieces               reasoning              content       call

A token belongs to the piece that it begins in: those of the content have its log-probabilities, those of the reasoning
are counted. Marks, and white space beside them, belong to nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace

from tidemill.core.tokens import FinishReason
from tidemill.frontend.choice import CallDelta, PlacedToken, TextDelta
from tidemill.text.answers.feed import AnswerParser
from tidemill.text.answers.pieces import Kind, Piece

__all__ = ["AnswerReader"]


class AnswerReader:
    """Reads the deltas of one choice in order."""

    def __init__(self, parser: AnswerParser, new_id: Callable[[], str]) -> None:
        """``new_id``: makes the ids of calls."""
        self._parser = parser
        self._new_id = new_id
        self._held: deque[PlacedToken] = deque()
        self._starts: deque[int] = deque()
        self._calls = 0
        self.reasoning_tokens = 0
        """Tokens that begin within reasoning."""

    def read(self, delta: TextDelta) -> TextDelta:
        """What the caller sees of a delta of the choice's whole text."""
        self._held.extend(delta.tokens)
        self._starts.extend(delta.starts)
        pieces = self._parser.push(delta.text)
        finish = delta.finish
        if finish is not None:
            pieces += self._parser.finish()
        elif self._parser.done:
            finish = FinishReason.STOP
        content: list[str] = []
        reasoning: list[str] = []
        tokens: list[PlacedToken] = []
        calls: list[CallDelta] = []
        for piece in pieces:
            if piece.call is not None:
                calls.append(self._called(piece))
            elif piece.kind is Kind.REASONING:
                reasoning.append(piece.text)
                self._count(piece)
            else:
                content.append(piece.text)
                tokens += self._of(piece)
        if finish is FinishReason.STOP and self._calls:
            finish = FinishReason.TOOL_CALLS
        return replace(
            delta,
            text="".join(content),
            reasoning="".join(reasoning),
            calls=tuple(calls),
            tokens=tuple(tokens),
            starts=(),
            finish=finish,
        )

    def _called(self, piece: Piece) -> CallDelta:
        assert piece.call is not None
        index, self._calls = self._calls, self._calls + 1
        return CallDelta(index=index, id=self._new_id(), name=piece.call.name, arguments=piece.call.arguments)

    def _count(self, piece: Piece) -> None:
        while self._starts and self._starts[0] < piece.start + len(piece.text):
            self.reasoning_tokens += self._starts.popleft() >= piece.start

    def _of(self, piece: Piece) -> list[PlacedToken]:
        found: list[PlacedToken] = []
        while self._held and self._held[0].start < piece.start + len(piece.text):
            token = self._held.popleft()
            if token.start >= piece.start:
                found.append(token)
        return found

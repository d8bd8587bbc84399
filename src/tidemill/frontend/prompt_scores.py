"""What a model thought of a prompt's tokens, in OpenAI's form (with ``echo``) and in vLLM's (``prompt_logprobs``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidemill.core.step import TokenLogprob
from tidemill.frontend.choice import PlacedToken
from tidemill.frontend.logprobs import completion_logprobs
from tidemill.frontend.text import Text

__all__ = ["PromptScores"]


class PromptScores:
    """One prompt and its log-probabilities: one for each token but the first, which nothing comes before."""

    def __init__(self, prompt: Sequence[int], scores: Sequence[TokenLogprob], text: Text) -> None:
        assert len(scores) == max(0, len(prompt) - 1), f"{len(scores)} scores for a prompt of {len(prompt)} tokens"
        self._prompt = prompt
        self._scores = scores
        self._text = text

    def echoed(self, top: int) -> dict[str, Any]:
        """Four lists as ``completion_logprobs`` gives, the first token's entries being null."""
        starts = self._starts()
        first = PlacedToken(logprob=TokenLogprob(token=self._prompt[0], logprob=0.0), start=0)
        rest = [
            PlacedToken(logprob=TokenLogprob(token=one.token, logprob=one.logprob, top=one.top[:top]), start=start)
            for one, start in zip(self._scores, starts[1:], strict=True)
        ]
        lists = completion_logprobs([first, *rest], self._text)
        lists["token_logprobs"][0] = None
        lists["top_logprobs"][0] = None
        return lists

    def by_id(self, top: int) -> list[dict[str, Any] | None]:
        """Per token null (the first), or ``{id: {logprob, rank, decoded_token}}``; a rank beyond the ones asked for is
        null."""
        return [None, *(self._ranked(one, top) for one in self._scores)]

    def _ranked(self, one: TokenLogprob, top: int) -> dict[str, Any]:
        entries: dict[str, Any] = {
            str(token): {"logprob": value, "rank": rank, "decoded_token": self._text.token_text(token)}
            for rank, (token, value) in enumerate(one.top[:top], 1)
        }
        own = {"logprob": one.logprob, "rank": None, "decoded_token": self._text.token_text(one.token)}
        entries.setdefault(str(one.token), own)
        return entries

    def _starts(self) -> list[int]:
        """Characters before each token, in the text that the tokens become."""
        detokenizer = self._text.detokenizer()
        starts, length = [], 0
        for token in self._prompt:
            starts.append(length)
            length += len(detokenizer.push((token,)))
        return starts

"""BPE by scores, as SentencePiece does it: of all neighbours whose union is a token, the best-scored are joined first.

A vocabulary of this kind has no list of merges. One could be made up from the tokens, but no list says "the leftmost of
equals", so its ids would differ, for instance in runs of dashes. Knows spaces only as ``▁``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush

__all__ = ["SPACE_MARK", "ScoreMerges"]

SPACE_MARK = "▁"
_WORDS_KEPT = 65_536
_LONGEST_KEPT = 48


class ScoreMerges:
    """Text, spaces already marked, to ids. Safe to use from several threads.

    The text is cut into words first, at places that no token spans, so that words can be kept: the ids are those of the
    whole text at once. A word of n characters takes n log n steps.
    """

    def __init__(
        self,
        ids: Mapping[str, int],
        scores: Sequence[float],
        *,
        byte_ids: Sequence[int] | None,
        unknown_id: int | None,
    ) -> None:
        """``ids``: tokens that text may become. ``scores``: by id, higher first. ``byte_ids``: one for each byte.

        A character that is no token becomes the tokens of its bytes; without these, ``unknown_id``, one for each run
        of such characters.
        """
        self._ids = ids
        self._costs = [-score for score in scores]
        self._byte_ids = byte_ids
        self._unknown_id = unknown_id
        self._cuts = _cuts(ids)
        self._words: dict[str, list[int]] = {}

    @property
    def ids(self) -> Mapping[str, int]:
        """Tokens that text may become."""
        return self._ids

    def encode(self, text: str) -> list[int]:
        """Ids of the text."""
        ids: list[int] = []
        for word in self._cuts.split(text):
            ids += self._words.get(word) or self._learnt(word)
        if self._byte_ids is None:
            return [
                token for i, token in enumerate(ids) if not (token == self._unknown_id and ids[i - 1 : i] == [token])
            ]
        return ids

    def _learnt(self, word: str) -> list[int]:
        ids = [token for symbol in self._symbols(word) for token in self._tokens_of(symbol)]
        if len(word) <= _LONGEST_KEPT:
            if len(self._words) >= _WORDS_KEPT:
                self._words = {}
            self._words[word] = ids
        return ids

    def _tokens_of(self, symbol: str) -> Sequence[int]:
        token = self._ids.get(symbol)
        if token is not None:
            return (token,)
        if self._byte_ids is not None:
            return [self._byte_ids[byte] for byte in symbol.encode()]
        return () if self._unknown_id is None else (self._unknown_id,)

    def _symbols(self, word: str) -> list[str]:
        """The word in tokens and single characters.

        Symbols keep the place of their first character: a joined one grows, its right half becomes empty.

            place        0    1   2    3   4
            symbols      ▁th  ""  ""   e   n
            following    3             4   5
            before      -1             0   3

        A heap holds candidates (cost, left, right, length); one whose halves have changed since is passed over.
        """
        ids, costs = self._ids, self._costs
        symbols = list(word)
        end = len(symbols)
        following = list(range(1, end + 1))
        before = list(range(-1, end - 1))
        heap = [
            (costs[token], left, left + 1, 2)
            for left in range(end - 1)
            if (token := ids.get(word[left : left + 2])) is not None
        ]
        heapify(heap)
        while heap:
            _, left, right, length = heappop(heap)
            if not symbols[left] or not symbols[right] or len(symbols[left]) + len(symbols[right]) != length:
                continue
            joined = symbols[left] = symbols[left] + symbols[right]
            symbols[right] = ""
            after = following[left] = following[right]
            if after < end:
                before[after] = left
                if (token := ids.get(joined + symbols[after])) is not None:
                    heappush(heap, (costs[token], left, after, length + len(symbols[after])))
            if (previous := before[left]) >= 0 and (token := ids.get(symbols[previous] + joined)) is not None:
                heappush(heap, (costs[token], previous, left, len(symbols[previous]) + length))
        return [symbol for symbol in symbols if symbol]


def _cuts(tokens: Mapping[str, int]) -> re.Pattern[str]:
    """Places before a space mark, except after another mark or a character that some token has before a mark."""
    joining = {SPACE_MARK}
    for token in tokens:
        place = token.find(SPACE_MARK, 1)
        while place > 0:
            joining.add(token[place - 1])
            place = token.find(SPACE_MARK, place + 1)
    return re.compile(f"(?<=[^{''.join(map(re.escape, sorted(joining)))}])(?={SPACE_MARK})")

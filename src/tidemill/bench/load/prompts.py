"""Made-up prompts of an exact length, whose shared parts are the same tokens.

A segment's id fixes its tokens: equal ids are equal tokens, and a shorter segment with the same id is the beginning of
the longer one. What a prompt has of its own is drawn for it alone. As token ids that is all there is to it; as text it
takes a tokenizer, and every text is encoded again to see that it has the tokens it was made of.
"""

from __future__ import annotations

import hashlib
import re
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np

from tidemill.bench.load.request import DEFAULT_IDS, Prompt
from tidemill.bench.traces.row import Segment
from tidemill.core.errors import ConfigError
from tidemill.text.tokenizer import Tokenizer

__all__ = ["IdPrompts", "Prompts", "TextPrompts", "WordPrompts"]


class Prompts(Protocol):
    """Makes prompts."""

    def make(self, prefix: Sequence[Segment], tokens: int, own: str) -> Prompt:
        """A prompt of so many tokens in all that begins with these segments, cut to its length. ``own``: a name that
        fixes the rest."""
        ...


@dataclass(slots=True, kw_only=True)
class Draws:
    """Numbers below ``size`` by name: the same name gives the same ones, however many are asked for."""

    size: int
    seed: int = 0
    _kept: dict[str, np.ndarray[tuple[int], np.dtype[np.int64]]] = field(default_factory=dict)

    def segments(self, prefix: Sequence[Segment], tokens: int, own: str) -> list[int]:
        """Of a whole prompt."""
        found: list[int] = []
        for segment in prefix:
            found += self._of("shared\0" + segment.id, segment.tokens, keep=True)[: max(0, tokens - len(found))]
        return found + self._of("own\0" + own, tokens - len(found), keep=False)

    def _of(self, name: str, count: int, *, keep: bool) -> list[int]:
        kept = self._kept.get(name)
        if kept is None or len(kept) < count:
            digest = hashlib.blake2b(f"{self.seed}\0{name}".encode(), digest_size=16).digest()
            kept = np.random.default_rng(int.from_bytes(digest)).integers(0, self.size, count, dtype=np.int64)
            if keep:
                self._kept[name] = kept
        found: list[int] = kept[:count].tolist()
        return found


class IdPrompts:
    """Prompts as token ids."""

    def __init__(self, ids: Sequence[int] | range = range(*DEFAULT_IDS), *, seed: int = 0) -> None:
        """``ids``: those that prompts are made of. Raises ConfigError for fewer than two."""
        if len(ids) < 2:
            raise ConfigError("prompts need two different token ids at least", param="token_ids")
        self._ids = ids
        self._draws = Draws(size=len(ids), seed=seed)

    def make(self, prefix: Sequence[Segment], tokens: int, own: str) -> Prompt:
        """Exactly the tokens that the model sees, where the server puts nothing around token ids."""
        ids = array("i", [self._ids[i] for i in self._draws.segments(prefix, tokens, own)])
        return Prompt(ids=ids, tokens=len(ids))


class TextPrompts:
    """Prompts as text that a tokenizer cuts into exactly as many tokens.

    They are made of words that are one token each wherever they stand: whole words in small letters with a blank
    before them. A prompt whose text does not give back its tokens is marked as not exact.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        seed: int = 0,
        around: Callable[[str], Sequence[int]] | None = None,
    ) -> None:
        """``around``: the token ids of a text with all that the server puts around it, such as a chat template;
        default: what the tokenizer puts around a plain prompt. Raises ConfigError for a vocabulary without words."""
        self._tokenizer = tokenizer
        self._around = around or tokenizer.encode
        self._words = _words(tokenizer)
        self._draws = Draws(size=len(self._words), seed=seed)
        word = tokenizer.decode(self._words[:1])
        self.overhead = len(self._around(word)) - len(tokenizer.encode(word, add_bos=False))
        """Tokens of a prompt that are not its text's."""

    def make(self, prefix: Sequence[Segment], tokens: int, own: str) -> Prompt:
        """Counted with what is put around it, which begins alike for all prompts. One text token is the least."""
        room = max(1, tokens - self.overhead)
        ids = [self._words[i] for i in self._draws.segments(prefix, room, own)]
        text = self._tokenizer.decode(ids)
        seen = self._around(text)
        return Prompt(text=text, tokens=len(seen), exact=len(seen) == tokens and _contains(seen, ids))


class WordPrompts:
    """Prompts of plain words for servers whose tokenizer is not at hand: about one token a word, and said to be so."""

    def __init__(self, *, seed: int = 0) -> None:
        self._draws = Draws(size=len(_COMMON), seed=seed)

    def make(self, prefix: Sequence[Segment], tokens: int, own: str) -> Prompt:
        """An estimate; what the server counts is in the records."""
        words = [_COMMON[i] for i in self._draws.segments(prefix, tokens, own)]
        return Prompt(text=" ".join(words), tokens=tokens, exact=False)


_COMMON: Final = (  # noqa: SIM905 (a list would take a page)
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city community name president team minute idea body information"
).split()
_MOST_WORDS: Final = 8192
_WORD: Final = re.compile(rb" [a-z]{2,}")


def _words(tokenizer: Tokenizer) -> list[int]:
    """Ids of words that stay one token between other words."""
    found = [i for i in range(tokenizer.vocab_size) if _WORD.fullmatch(tokenizer.token_bytes(i))][:_MOST_WORDS]
    if len(found) < 2:
        raise ConfigError("the tokenizer has no words to make prompts of; use token ids", param="tokenizer")
    kept: list[int] = []
    for start in range(0, len(found), 64):
        some = found[start : start + 64]
        kept += [i for i in some if _stays(tokenizer, i)] if not _contains(_again(tokenizer, some), some) else some
    if len(kept) < 2:
        raise ConfigError("the tokenizer cuts every word into pieces; use token ids", param="tokenizer")
    return kept


def _stays(tokenizer: Tokenizer, token: int) -> bool:
    return _again(tokenizer, [token, token]) == [token, token]


def _again(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    return tokenizer.encode(tokenizer.decode(ids), add_bos=False)


def _contains(ids: Sequence[int], part: Sequence[int]) -> bool:
    """True if the part is in ids, all in one place."""
    return any(list(ids[i : i + len(part)]) == list(part) for i in range(len(ids) - len(part) + 1))

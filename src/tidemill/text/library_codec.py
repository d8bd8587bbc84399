"""A tokenizer of the tokenizers library, under two sets of rules.

In *plain* text a control token typed by a user is ordinary text; in *markup* it is the control token. User-defined
tokens that are no control tokens match in both. Vocabulary and merges are shared between the sets.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable

# Texts come one by one: threads of its own would gain nothing, and it would say so at each process that is started.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from tokenizers import AddedToken, normalizers
from tokenizers import Tokenizer as Backend

from tidemill.core.errors import InvalidRequest, ModelLoadError
from tidemill.text.codec import Marks
from tidemill.text.pieces import spelling_of

__all__ = ["LibraryCodec", "is_panic"]

_MARK_SETS = 8


def is_panic(error: BaseException) -> bool:
    """True for a panic of the library's Rust code, which is no Exception: it has met rules that do not fit together, or
    an expression that backtracks without end."""
    return type(error).__name__ == "PanicException"


class LibraryCodec:
    """See ``Codec``."""

    def __init__(self, backend: Backend, *, special_texts: Iterable[str], where: str, size: int | None = None) -> None:
        """``special_texts``: tokens that are control tokens besides those flagged so. ``size``: number of ids, where
        it is more than the library counts, as names that occur twice count once there.

        Raises ModelLoadError for a decoder whose tokens are no bytes, and for gaps between added tokens.
        """
        spelling = spelling_of(backend.decoder and backend.decoder.__getstate__(), where=where)
        self._special_ids = _special_ids(backend, special_texts)
        self._added = dict(sorted(backend.get_added_tokens_decoder().items()))
        self._spell = spelling.to_bytes
        self._leading_spaces = spelling.leading_spaces
        self._size: int = max(size or 0, backend.get_vocab_size(with_added_tokens=True))
        self._special_texts = frozenset(self._added[i].content for i in self._special_ids if i in self._added)
        self._where = where
        self._markup = self._copy(backend)
        self._plain = self._copy(backend)
        self._plain.encode_special_tokens = True
        self._lock = threading.Lock()
        self._demarked: dict[tuple[tuple[str, str], ...], Backend] = {}

    @property
    def size(self) -> int:
        """Number of ids, added tokens included."""
        return self._size

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids of all control tokens."""
        return self._special_ids

    @property
    def special_texts(self) -> frozenset[str]:
        """Texts of all control tokens."""
        return self._special_texts

    @property
    def leading_spaces(self) -> int:
        """Spaces that the decoder drops at the beginning."""
        return self._leading_spaces

    def encode(self, text: str, *, controls: bool, marks: Marks = ()) -> list[int]:
        """See ``Codec``; what the post-processor would put around the text is left out."""
        backend = self._plain if not controls else self._without_marks(tuple(marks)) if marks else self._markup
        try:
            # The method for one text holds the interpreter's lock, 10 s for 8 MB; that for several does not.
            ids: list[int] = backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
        except BaseException as error:
            if not isinstance(error, Exception) and not is_panic(error):
                raise
            raise InvalidRequest(f"the model's tokenizer cannot cut this text: {error}") from error
        return ids

    def bytes_of(self, token: int) -> bytes:
        """See ``Codec``."""
        if (added := self._added.get(token)) is not None:
            return added.content.encode()
        name = self._markup.id_to_token(token) if 0 <= token < 2**32 else None
        return b"" if name is None else self._spell(name)

    def token_id(self, text: str) -> int | None:
        """See ``Codec``."""
        found: int | None = self._markup.token_to_id(text)
        return found

    def _without_marks(self, marks: tuple[tuple[str, str], ...]) -> Backend:
        """The markup rules, with marks replaced by the normalizer, which runs after control tokens were found."""
        with self._lock:
            found = self._demarked.get(marks)
            if found is None:
                found = self._copy(self._markup, early=True)
                steps: list[normalizers.Normalizer] = [normalizers.Replace(mark, text) for mark, text in marks]
                if found.normalizer is not None:
                    steps.append(found.normalizer)
                found.normalizer = normalizers.Sequence(steps)
                if len(self._demarked) < _MARK_SETS:  # marks are nearly always the same; a caller must not grow this
                    self._demarked[marks] = found
            return found

    def _copy(self, backend: Backend, *, early: bool = False) -> Backend:
        """A further set of rules over the same model.

        ``early``: look for control tokens in the text before normalisation, whatever their own flag says.
        """
        copy = Backend(backend.model)
        for part in ("normalizer", "pre_tokenizer", "decoder"):
            if (value := getattr(backend, part)) is not None:
                setattr(copy, part, value)
        special = self._special_ids
        copy.add_tokens([_readded(entry, special=i in special, early=early) for i, entry in self._added.items()])
        for token, entry in self._added.items():
            if copy.token_to_id(entry.content) != token:
                raise ModelLoadError(
                    f"{self._where}: added token {entry.content!r} has id {token}, which leaves a gap before it"
                )
        return copy


def _special_ids(backend: Backend, texts: Iterable[str]) -> frozenset[int]:
    """Added tokens flagged special, and those that the model's configuration names as BOS, EOS and so on."""
    added = backend.get_added_tokens_decoder()
    named = [(backend.token_to_id(text), text) for text in texts if text]
    missing = [AddedToken(text, special=True) for token, text in named if token is not None and token not in added]
    if missing:
        backend.add_tokens(missing)
        added = backend.get_added_tokens_decoder()
    flagged = {token for token, entry in added.items() if entry.special}
    return frozenset(flagged | {token for token, _ in named if token is not None})


def _readded(entry: AddedToken, *, special: bool, early: bool) -> AddedToken:
    return AddedToken(
        entry.content,
        single_word=entry.single_word,
        lstrip=entry.lstrip,
        rstrip=entry.rstrip,
        normalized=entry.normalized and not (special and early),
        special=special,
    )

"""Text to token ids and back, equal to the model's own tokenizer.

A ``Tokenizer`` knows nothing of files, HTTP or engines. It holds one BPE model (of the tokenizers library) under two
sets of rules: in *plain* text a control token typed by a user is ordinary text; in *markup*, the output of a chat
template, it is the control token. User-defined tokens that are no control tokens (``<think>``, runs of spaces) match in
both, as they do in transformers.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from tokenizers import AddedToken, normalizers
from tokenizers import Tokenizer as Backend

from tidemill.core.errors import InvalidRequest, ModelLoadError
from tidemill.text.gguf_bpe import backend_from_gguf, pre_rule
from tidemill.text.pieces import Spelling, spelling_of
from tidemill.text.source import GgufVocabulary, TextSource

__all__ = ["Tokenizer", "build_tokenizer"]


class Tokenizer:
    """Built by ``build_tokenizer``. Safe to use from several threads."""

    def __init__(
        self,
        backend: Backend,
        *,
        spelling: Spelling,
        special_ids: frozenset[int],
        bos_id: int | None,
        before: Sequence[int],
        after: Sequence[int],
        where: str,
    ) -> None:
        """``before`` and ``after``: ids that belong around a plain prompt (BOS; rarely EOS), both mostly empty."""
        self._added = dict(sorted(backend.get_added_tokens_decoder().items()))
        self._special_ids = special_ids
        self._markup = _copy(backend, self._added, special_ids, where=where)
        self._plain = _copy(backend, self._added, special_ids, where=where)
        self._plain.encode_special_tokens = True
        self._spelling = spelling
        self._pieces: dict[int, bytes] = {}
        self._before, self._after = list(before), list(after)
        self._where = where
        self._lock = threading.Lock()
        self._demarked: dict[tuple[tuple[str, str], ...], Backend] = {}
        self.bos_id = bos_id
        """Id of the begin-of-text token, or None."""
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        """Number of ids, added tokens included."""
        self.special_texts = frozenset(self._added[i].content for i in special_ids if i in self._added)
        """Texts of all control tokens."""
        self.leading_spaces = spelling.leading_spaces
        """Spaces that ``decode`` drops at the beginning of a text."""

    @property
    def adds_bos(self) -> bool:
        """True if plain prompts start with BOS unless the caller says otherwise."""
        return bool(self._before)

    def encode(self, text: str, *, add_bos: bool | None = None, allow_special: bool = False) -> list[int]:
        """Token ids of a plain prompt.

        ``add_bos``: None puts around the text what the tokenizer itself does (see ``adds_bos``); True makes it start
        with BOS (InvalidRequest if there is none); False gives the text alone. Text that already begins with BOS typed
        out is not looked at: unless ``allow_special``, it is text, and BOS is added before it.
        """
        ids: list[int] = _encode(self._markup if allow_special else self._plain, text)
        if add_bos is None:
            return [*self._before, *ids, *self._after]
        if not add_bos:
            return ids
        if self.bos_id is None:
            raise InvalidRequest("this model has no begin-of-text token", param="add_bos")
        return [*(self._before or [self.bos_id]), *ids, *self._after]

    def encode_markup(self, text: str, *, marks: Iterable[tuple[str, str]] = ()) -> list[int]:
        """Token ids of a rendered chat prompt: control tokens are matched, nothing is put around it.

        ``marks``: (character, text) pairs, replaced after control tokens have been found and before the rest is cut.
        """
        key = tuple(marks)
        return _encode(self._without_marks(key) if key else self._markup, text)

    def decode(self, ids: Iterable[int], *, skip_special: bool = True, at_start: bool = True) -> str:
        """The text of ids. Bytes that are no UTF-8 become U+FFFD, one for each maximal invalid stretch.

        Unknown ids are dropped. No spaces are cleaned up before punctuation, ever. ``at_start`` False: the ids
        continue a text, so a leading space that the tokenizer would only have put before a whole text is kept.
        """
        text = b"".join(self.visible_bytes(i) if skip_special else self.token_bytes(i) for i in ids)
        for _ in range(self.leading_spaces if at_start else 0):
            text = text.removeprefix(b" ")
        return text.decode("utf-8", errors="replace")

    def token_bytes(self, token: int) -> bytes:
        """Exact bytes of one token, which may be part of a character only; empty for an unknown id."""
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._make_piece(token)
        return piece

    def visible_bytes(self, token: int) -> bytes:
        """``token_bytes``, but nothing for a control token."""
        return b"" if token in self._special_ids else self.token_bytes(token)

    def token_text(self, token: int) -> str:
        """One token as text; U+FFFD for bytes that are no whole character."""
        return self.token_bytes(token).decode("utf-8", errors="replace")

    def token_id(self, text: str) -> int | None:
        """Id of the token with exactly this name in the vocabulary, or None."""
        found: int | None = self._markup.token_to_id(text)
        return found

    def is_special(self, token: int) -> bool:
        """True for control tokens, which ``decode`` leaves out."""
        return token in self._special_ids

    def _make_piece(self, token: int) -> bytes:
        if (added := self._added.get(token)) is not None:
            return added.content.encode()
        name = self._markup.id_to_token(token) if 0 <= token < 2**32 else None
        return b"" if name is None else self._spelling.to_bytes(name)

    def _without_marks(self, marks: tuple[tuple[str, str], ...]) -> Backend:
        """The markup rules, with marks replaced by the normalizer, which runs after control tokens were found."""
        with self._lock:
            found = self._demarked.get(marks)
            if found is None:
                found = _copy(self._markup, self._added, self._special_ids, where=self._where, early=True)
                steps: list[normalizers.Normalizer] = [normalizers.Replace(mark, text) for mark, text in marks]
                if found.normalizer is not None:
                    steps.append(found.normalizer)
                found.normalizer = normalizers.Sequence(steps)
                if len(self._demarked) < 8:  # marks are nearly always the same; a caller must not grow this
                    self._demarked[marks] = found
            return found


def build_tokenizer(source: TextSource) -> Tokenizer:
    """The tokenizer of a model. Raises ModelLoadError in one line for what is damaged or not supported."""
    where = source.where or "tokenizer"
    if (source.tokenizer_json is None) == (source.gguf is None):
        raise ModelLoadError(f"{where}: a model has either a tokenizer.json or a GGUF vocabulary")
    if source.gguf is not None:
        return _from_gguf(source, source.gguf, where=where)
    assert source.tokenizer_json is not None
    return _from_json(source, source.tokenizer_json, where=where)


def _from_json(source: TextSource, content: bytes, *, where: str) -> Tokenizer:
    try:
        backend = Backend.from_str(content.decode())
    except Exception as error:  # the library raises bare Exception for any malformed file
        raise ModelLoadError(f"{where}: tokenizer.json cannot be read: {error}") from error
    backend.no_truncation()
    backend.no_padding()
    before, after = _post_processor_ids(backend)
    bos_text = source.special_tokens.get("bos_token")
    bos_id = backend.token_to_id(bos_text) if bos_text else None
    if bos_id is None and len(before) == 1:
        bos_id = before[0]
    if source.add_bos is not None:
        before = _before(source.add_bos, before, bos_id, where=where)
    return Tokenizer(
        backend,
        spelling=spelling_of(backend.decoder and backend.decoder.__getstate__(), where=where),
        special_ids=_special_ids(backend, source.special_tokens.values()),
        bos_id=bos_id,
        before=before,
        after=after,
        where=where,
    )


def _from_gguf(source: TextSource, vocabulary: GgufVocabulary, *, where: str) -> Tokenizer:
    backend = backend_from_gguf(vocabulary, where=where)
    roles = [vocabulary.bos_id, vocabulary.eos_id, vocabulary.unk_id, vocabulary.pad_id]
    for token in roles:
        if token is not None and not 0 <= token < len(vocabulary.tokens):
            raise ModelLoadError(f"{where}: special token id {token} is outside the vocabulary")
    texts = [vocabulary.tokens[token] for token in roles if token is not None]
    add_bos = source.add_bos if source.add_bos is not None else vocabulary.add_bos
    if add_bos is None:
        add_bos = pre_rule(vocabulary, where=where).add_bos and vocabulary.bos_id is not None
    after = [vocabulary.eos_id] if vocabulary.add_eos and vocabulary.eos_id is not None else []
    return Tokenizer(
        backend,
        spelling=spelling_of(backend.decoder.__getstate__(), where=where),
        special_ids=_special_ids(backend, [*texts, *source.special_tokens.values()]),
        bos_id=vocabulary.bos_id,
        before=_before(add_bos, (), vocabulary.bos_id, where=where),
        after=after,
        where=where,
    )


def _before(add_bos: bool, own: Sequence[int], bos_id: int | None, *, where: str) -> Sequence[int]:
    """Ids before a plain prompt; ``own`` are the tokenizer's, if it has any."""
    if not add_bos:
        return ()
    if own:
        return own
    if bos_id is None:
        raise ModelLoadError(f"{where}: the tokenizer asks for a BOS token but names none")
    return (bos_id,)


def _post_processor_ids(backend: Backend) -> tuple[Sequence[int], Sequence[int]]:
    """What the post-processor puts before and after a text, seen from the ids of a probe."""
    bare = backend.encode("a", add_special_tokens=False).ids
    whole = backend.encode("a", add_special_tokens=True).ids
    for start in range(len(whole) - len(bare) + 1):
        if whole[start : start + len(bare)] == bare:
            return whole[:start], whole[start + len(bare) :]
    return (), ()


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


def _copy(
    backend: Backend, added: dict[int, AddedToken], special_ids: frozenset[int], *, where: str, early: bool = False
) -> Backend:
    """A second set of rules over the same model: vocabulary and merges are shared, not copied.

    ``early``: look for control tokens in the text before normalisation, whatever their own flag says.
    """
    copy = Backend(backend.model)
    for part in ("normalizer", "pre_tokenizer", "decoder"):
        if (value := getattr(backend, part)) is not None:
            setattr(copy, part, value)
    copy.add_tokens([_readded(entry, special=token in special_ids, early=early) for token, entry in added.items()])
    for token, entry in added.items():
        if copy.token_to_id(entry.content) != token:
            raise ModelLoadError(f"{where}: added token {entry.content!r} has id {token}, which leaves a gap before it")
    return copy


def _readded(entry: AddedToken, *, special: bool, early: bool) -> AddedToken:
    return AddedToken(
        entry.content,
        single_word=entry.single_word,
        lstrip=entry.lstrip,
        rstrip=entry.rstrip,
        normalized=entry.normalized and not (special and early),
        special=special,
    )


def _encode(backend: Backend, text: str) -> list[int]:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"text has half a surrogate pair at character {error.start}") from error
    ids: list[int] = backend.encode(text, add_special_tokens=False).ids
    return ids

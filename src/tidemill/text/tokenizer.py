"""Text to token ids and back, equal to the model's own tokenizer.

A ``Tokenizer`` knows nothing of files, HTTP or engines. It puts what belongs around a prompt, and joins tokens to text;
a ``Codec`` knows the vocabulary. In *plain* text a control token typed by a user is ordinary text; in *markup*, the
output of a chat template, it is the control token. User-defined tokens that are no control tokens (``<think>``, runs of
spaces) match in both, as they do in transformers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokenizers import Tokenizer as Backend

from tidemill.core.errors import InvalidRequest, ModelLoadError
from tidemill.text.codec import Codec, Marks
from tidemill.text.gguf_bpe import backend_from_gguf, pre_rule
from tidemill.text.gguf_sentencepiece import sentencepiece_from_gguf
from tidemill.text.gguf_wordpiece import wordpiece_from_gguf
from tidemill.text.library_codec import LibraryCodec, is_panic
from tidemill.text.source import GgufVocabulary, TextSource
from tidemill.text.untrusted_rules import check_rules

__all__ = ["Tokenizer", "build_tokenizer"]


class Tokenizer:
    """Built by ``build_tokenizer``. Safe to use from several threads."""

    def __init__(self, codec: Codec, *, bos_id: int | None, before: Sequence[int], after: Sequence[int]) -> None:
        """``before`` and ``after``: ids that belong around a plain prompt (BOS; rarely EOS), both mostly empty."""
        self._codec = codec
        self._special_ids = codec.special_ids
        self._pieces: dict[int, bytes] = {}
        self._before, self._after = list(before), list(after)
        self.bos_id = bos_id
        """Id of the begin-of-text token, or None."""
        self.vocab_size: int = codec.size
        """Number of ids, added tokens included."""
        self.special_texts = codec.special_texts
        """Texts of all control tokens."""
        self.leading_spaces = codec.leading_spaces
        """Spaces that ``decode`` drops at the beginning of a text."""

    @property
    def adds_bos(self) -> bool:
        """True if plain prompts start with BOS unless the caller says otherwise."""
        return bool(self._before)

    @property
    def ending(self) -> list[int]:
        """Ids that belong after a plain prompt."""
        return list(self._after)

    def encode(self, text: str, *, add_bos: bool | None = None, allow_special: bool = False) -> list[int]:
        """Token ids of a plain prompt.

        ``add_bos``: None puts around the text what the tokenizer itself does (see ``adds_bos``); True makes it start
        with BOS (InvalidRequest if there is none); False gives the text alone. Text that already begins with BOS typed
        out is not looked at: unless ``allow_special``, it is text, and BOS is added before it.
        """
        ids = self._codec.encode(_whole(text), controls=allow_special)
        if add_bos is None:
            return [*self._before, *ids, *self._after]
        if not add_bos:
            return ids
        if self.bos_id is None:
            raise InvalidRequest("this model has no begin-of-text token", param="add_bos")
        return [*(self._before or [self.bos_id]), *ids, *self._after]

    def encode_markup(self, text: str, *, marks: Marks = ()) -> list[int]:
        """Token ids of a rendered chat prompt: control tokens are matched, nothing is put around it.

        ``marks``: (character, text) pairs, replaced after control tokens have been found and before the rest is cut.
        """
        return self._codec.encode(_whole(text), controls=True, marks=marks)

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
            piece = self._pieces[token] = self._codec.bytes_of(token)
        return piece

    def visible_bytes(self, token: int) -> bytes:
        """``token_bytes``, but nothing for a control token."""
        return b"" if token in self._special_ids else self.token_bytes(token)

    def token_text(self, token: int) -> str:
        """One token as text; U+FFFD for bytes that are no whole character."""
        return self.token_bytes(token).decode("utf-8", errors="replace")

    def token_id(self, text: str) -> int | None:
        """Id of the token with exactly this name in the vocabulary, or None."""
        return self._codec.token_id(text)

    def control_token(self, text: str) -> int | None:
        """Id of the control token with this text, or None."""
        token = self.token_id(text)
        return token if token is not None and self.is_special(token) else None

    def is_special(self, token: int) -> bool:
        """True for control tokens, which ``decode`` leaves out."""
        return token in self._special_ids


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
    check_rules(content, where=where)
    try:
        backend = Backend.from_str(content.decode())
        backend.no_truncation()
        backend.no_padding()
        before, after = _post_processor_ids(backend)
    except BaseException as error:  # the library raises bare Exception for any malformed file, or panics
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        raise ModelLoadError(f"{where}: tokenizer.json cannot be read: {error}") from error
    bos_text = source.special_tokens.get("bos_token")
    bos_id = backend.token_to_id(bos_text) if bos_text else None
    if bos_id is None and len(before) == 1:
        bos_id = before[0]
    if source.add_bos is not None:
        before = _before(source.add_bos, before, bos_id, where=where)
    codec = LibraryCodec(backend, special_texts=source.special_tokens.values(), where=where)
    return Tokenizer(codec, bos_id=bos_id, before=before, after=after)


def _from_gguf(source: TextSource, vocabulary: GgufVocabulary, *, where: str) -> Tokenizer:
    codec, adds_bos = _gguf_codec(vocabulary, _role_texts(source, vocabulary, where=where), where=where)
    bos_id, after = vocabulary.bos_id, _after(vocabulary, codec)
    if bos_id is None and vocabulary.model == "bert":
        bos_id = codec.token_id("[CLS]")
    add_bos = source.add_bos if source.add_bos is not None else vocabulary.add_bos
    if add_bos is None:
        add_bos = adds_bos and bos_id is not None
    return Tokenizer(codec, bos_id=bos_id, before=_before(add_bos, (), bos_id, where=where), after=after)


def _role_texts(source: TextSource, vocabulary: GgufVocabulary, *, where: str) -> list[str]:
    """Texts of the tokens that the file or the configuration gives a role (BOS, EOS, ...)."""
    roles = [vocabulary.bos_id, vocabulary.eos_id, vocabulary.unk_id, vocabulary.pad_id, vocabulary.sep_id]
    named = [token for token in roles if token is not None]
    for token in named:
        if not 0 <= token < len(vocabulary.tokens):
            raise ModelLoadError(f"{where}: special token id {token} is outside the vocabulary")
    return [*(vocabulary.tokens[token] for token in named), *source.special_tokens.values()]


def _gguf_codec(vocabulary: GgufVocabulary, special_texts: Sequence[str], *, where: str) -> tuple[Codec, bool]:
    """The codec, and whether plain prompts start with BOS where the file does not say."""
    match vocabulary.model:
        case "gpt2":
            backend, adds_bos = backend_from_gguf(vocabulary, where=where), pre_rule(vocabulary, where=where).add_bos
        case "bert":
            backend, adds_bos = wordpiece_from_gguf(vocabulary, where=where), True
        case "llama":
            return sentencepiece_from_gguf(vocabulary, special_texts=special_texts, where=where), True
        case kind:
            raise ModelLoadError(f"{where}: tokenizer.ggml.model {kind!r} is not supported (gpt2, llama and bert are)")
    codec = LibraryCodec(backend, special_texts=special_texts, where=where, size=len(vocabulary.tokens))
    return codec, adds_bos


def _after(vocabulary: GgufVocabulary, codec: Codec) -> list[int]:
    """Ids after a plain prompt: of kind bert the separator unless the file says no, of others EOS if it says so."""
    if vocabulary.model == "bert":
        sep_id = codec.token_id("[SEP]") if vocabulary.sep_id is None else vocabulary.sep_id
        return [] if sep_id is None or vocabulary.add_sep is False else [sep_id]
    return [vocabulary.eos_id] if vocabulary.add_eos and vocabulary.eos_id is not None else []


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


def _whole(text: str) -> str:
    """The text, if it can be bytes at all."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"text has half a surrogate pair at character {error.start}") from error
    return text

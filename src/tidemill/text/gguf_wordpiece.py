"""A WordPiece tokenizer (kind ``bert``) rebuilt from the metadata of a GGUF file."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from tidemill.core.errors import ModelLoadError
from tidemill.text.gguf_bpe import CONTROL, UNKNOWN, check_types
from tidemill.text.source import GgufVocabulary

__all__ = ["wordpiece_from_gguf"]

_WORD = "▁"
_INSIDE = "##"


def wordpiece_from_gguf(vocabulary: GgufVocabulary, *, where: str) -> Backend:
    """The tokenizer, under the names that the model's own vocabulary has: ``the`` and ``##ing``.

    A GGUF file marks the beginnings of words instead (``▁the`` and ``ing``), and does not say whether case counts: it
    does where some token has a capital, which lower-cased text would never reach.
    Raises ModelLoadError where types do not fit, or no token stands for unknown words.
    """
    check_types(vocabulary, where=where)
    types = vocabulary.token_types or [0] * len(vocabulary.tokens)
    control = [kind in (CONTROL, UNKNOWN) or _is_bracketed(t) for t, kind in zip(vocabulary.tokens, types, strict=True)]
    names = [token if bare else _name(token) for token, bare in zip(vocabulary.tokens, control, strict=True)]
    if vocabulary.unk_id is not None and vocabulary.unk_id < len(names):
        unknown = names[vocabulary.unk_id]
    elif "[UNK]" in names:
        unknown = "[UNK]"
    else:
        raise ModelLoadError(f"{where}: the vocabulary names no unknown token")
    ids = {name: index for index, name in enumerate(names)}
    backend = Backend(models.WordPiece(ids, unk_token=unknown, continuing_subword_prefix=_INSIDE))
    words = (name for name, bare in zip(names, control, strict=True) if not bare)
    backend.normalizer = normalizers.BertNormalizer(lowercase=not _has_capitals(words))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix=_INSIDE, cleanup=False)
    special = [name for name, bare in zip(names, control, strict=True) if bare and name]
    backend.add_tokens([AddedToken(name, special=True, normalized=False) for name in special])
    return backend


def _name(token: str) -> str:
    return token[1:] if token.startswith(_WORD) else _INSIDE + token


def _is_bracketed(token: str) -> bool:
    return token.startswith("[") and token.endswith("]") and len(token) > 2


def _has_capitals(names: Iterable[str]) -> bool:
    return any(name != name.lower() for name in names)

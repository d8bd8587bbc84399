"""A byte-level BPE tokenizer rebuilt from the metadata of a GGUF file."""

from __future__ import annotations

from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as Backend

from tidemill.core.errors import ModelLoadError
from tidemill.text.pretokenizers import PRE_RULES, PreRule
from tidemill.text.source import GgufVocabulary

__all__ = ["backend_from_gguf", "check_types", "pre_rule"]

UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4


def pre_rule(vocabulary: GgufVocabulary, *, where: str) -> PreRule:
    """The pre-tokenizer rule that the file names. Raises ModelLoadError for a name that is not known."""
    rule = PRE_RULES.get(vocabulary.pre)
    if rule is None:
        known = ", ".join(name for name in PRE_RULES if name)
        raise ModelLoadError(f"{where}: tokenizer.ggml.pre {vocabulary.pre!r} is not known (known: {known})")
    return rule


def backend_from_gguf(vocabulary: GgufVocabulary, *, where: str) -> Backend:
    """Vocabulary, merges, cutting rule and added tokens as one tokenizers.Tokenizer.

    Control tokens become special ones; user-defined tokens are matched in any text, as in the model's own tokenizer.
    Raises ModelLoadError for an unknown rule, and where tokens, types and merges do not fit together.
    """
    rule = pre_rule(vocabulary, where=where)
    check_types(vocabulary, where=where)
    tokens, types = vocabulary.tokens, vocabulary.token_types
    ids = {token: index for index, token in enumerate(tokens)}
    merges = [(left, right) for left, _, right in (merge.partition(" ") for merge in vocabulary.merges)]
    try:
        model = models.BPE(ids, merges, ignore_merges=rule.ignore_merges)
    except Exception as error:  # the library raises bare Exception for merges that name no token
        raise ModelLoadError(f"{where}: tokenizer.ggml.merges do not fit the vocabulary: {error}") from error
    backend = Backend(model)
    if (normalizer := rule.normalizer()) is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = rule.pre_tokenizer()
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([_added(tokens[i], kind) for i, kind in enumerate(types) if _is_added(kind) and tokens[i]])
    return backend


def check_types(vocabulary: GgufVocabulary, *, where: str) -> None:
    """Raises ModelLoadError unless there is one type for each token, or none at all."""
    tokens, types = len(vocabulary.tokens), len(vocabulary.token_types)
    if types not in (0, tokens):
        raise ModelLoadError(f"{where}: tokenizer.ggml.token_type has {types} entries for {tokens} tokens")


def _is_added(kind: int) -> bool:
    return kind in (UNKNOWN, CONTROL, USER_DEFINED)


def _added(text: str, kind: int) -> AddedToken:
    return AddedToken(text, special=kind != USER_DEFINED, normalized=False)

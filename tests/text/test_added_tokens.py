"""Added tokens with every flag, under every normaliser: ids are those of the tokenizers library itself."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Library

from tidemill.text.source import TextSource
from tidemill.text.tokenizer import Tokenizer, build_tokenizer

FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")
NORMALIZERS: dict[str, Any] = {
    "none": None,
    "nfc": normalizers.NFC(),
    "nfkc": normalizers.NFKC(),
    "lower": normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents()]),
    "strip": normalizers.Strip(),
    "prepend": normalizers.Sequence([normalizers.Prepend("_"), normalizers.Replace(" ", "_")]),
    "bert": normalizers.BertNormalizer(),
}
PIECES = [" ", "  ", "\n", "a", "B", "_", "é", "e\u0301", "ﬁ", "中", ".", "1", "\x00", "\u200d", "😀", "x"]


def names() -> dict[str, dict[str, bool]]:
    """One token for each choice of flags, such as ``<Lrs0>``."""
    chosen = (dict(zip(FLAGS, values, strict=True)) for values in product([False, True], repeat=len(FLAGS)))
    return {f"<T{i}É>" if i % 2 else f"<t{i}>": flags for i, flags in enumerate(chosen)}


def library_of(kind: str) -> Library:
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    library = Library(models.BPE({letter: i for i, letter in enumerate(sorted(alphabet))}, []))
    if NORMALIZERS[kind] is not None:
        library.normalizer = NORMALIZERS[kind]
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    for name, flags in names().items():
        library.add_tokens([AddedToken(name, **flags)])
    return library


def both(kind: str) -> tuple[Library, Tokenizer]:
    library = library_of(kind)
    return library, build_tokenizer(TextSource(tokenizer_json=library.to_str().encode(), where=kind))


KNOWN = {kind: both(kind) for kind in NORMALIZERS}
text_with_tokens = st.lists(st.sampled_from([*PIECES, *names(), *(name.lower() for name in names())]), max_size=12).map(
    "".join
)


@pytest.mark.parametrize("kind", NORMALIZERS)
@given(text=text_with_tokens)
@settings(max_examples=150, deadline=None)
def test_ids_of_markup_and_of_plain_text(kind: str, text: str) -> None:
    library, ours = KNOWN[kind]
    library.encode_special_tokens = False
    assert ours.encode_markup(text) == library.encode(text, add_special_tokens=False).ids
    library.encode_special_tokens = True
    assert ours.encode(text, add_bos=False) == library.encode(text, add_special_tokens=False).ids


def test_each_flag_matters_here() -> None:
    """A token takes the spaces before it only if its flags say so, and is found inside a word only if it may be."""
    _, ours = KNOWN["none"]
    for name, flags in names().items():
        token = ours.token_id(name)
        assert token is not None
        assert ours.is_special(token) == flags["special"]
        spaced = ours.encode_markup(f"b {name} b")
        assert (spaced.index(token) == 1) == flags["lstrip"]
        assert (len(spaced) - spaced.index(token) == 2) == flags["rstrip"]
        assert (token in ours.encode_markup(f"b{name}b")) != flags["single_word"]

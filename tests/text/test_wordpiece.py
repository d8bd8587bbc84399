"""WordPiece, for embeddings: ids are those of transformers, from GGUF and from tokenizer.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.text.tiny_text import golden, wordpiece_vocabulary
from tidemill.core.errors import ModelLoadError
from tidemill.text.source import TextSource
from tidemill.text.tokenizer import Tokenizer, build_tokenizer

GOLDEN = golden("tiny_wordpiece.json")


def tokenizer_of(family: str, **changes: Any) -> Tokenizer:
    return build_tokenizer(TextSource(gguf=wordpiece_vocabulary(family, **changes), where="bert.gguf"))


@pytest.mark.parametrize("family", ["uncased", "cased"])
def test_ids_of_a_gguf_vocabulary_are_those_of_transformers(family: str) -> None:
    tokenizer = tokenizer_of(family)
    for text, ids in zip(GOLDEN[family]["texts"], GOLDEN[family]["transformers"], strict=True):
        assert tokenizer.encode(text) == ids, text


def test_ids_of_a_gguf_vocabulary_are_those_of_llama_cpp() -> None:
    """Of an uncased one: llama.cpp makes all text small."""
    tokenizer = tokenizer_of("uncased")
    for text, ids in zip(GOLDEN["uncased"]["texts"], GOLDEN["uncased"]["llama_cpp"], strict=True):
        assert tokenizer.encode(text) == ids, text


def test_what_goes_around_a_text() -> None:
    bare = tokenizer_of("uncased").encode("tides", add_bos=False)
    assert tokenizer_of("uncased").encode("tides") == [2, *bare, 3]
    unnamed = tokenizer_of("uncased", bos_id=None, sep_id=None, unk_id=None)
    assert unnamed.encode("tides") == [2, *bare, 3]  # found by name
    assert tokenizer_of("uncased", add_bos=False, add_sep=False).encode("tides") == bare
    assert tokenizer_of("uncased").adds_bos


def test_control_tokens_typed_in_a_text_are_text() -> None:
    tokenizer = tokenizer_of("uncased")
    ids = tokenizer.encode("[SEP] [CLS]", add_bos=False)
    assert 3 not in ids
    assert 2 not in ids
    assert tokenizer.encode_markup("[SEP]") == [3]


def test_words_come_back_with_single_spaces() -> None:
    tokenizer = tokenizer_of("cased")
    assert tokenizer.decode(tokenizer.encode("Hello world,  new lines")) == "Hello world , new lines"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"unk_id": None, "tokens": ["a"] * 575, "token_types": ()}, "the vocabulary names no unknown token"),
        ({"token_types": [1]}, "tokenizer.ggml.token_type has 1 entries for 575 tokens"),
        ({"unk_id": 575}, "special token id 575 is outside the vocabulary"),
    ],
)
def test_what_cannot_be_loaded_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        tokenizer_of("uncased", **changes)


def test_minilms_own_tokenizer(minilm_folder: Path) -> None:
    content = (minilm_folder / "tokenizer.json").read_bytes()
    tokenizer = build_tokenizer(TextSource(tokenizer_json=content, special_tokens={"cls_token": "[CLS]"}))
    expected = golden("minilm_ids.json")
    for text, ids in zip(expected["texts"], expected["ids"], strict=True):
        assert tokenizer.encode(text) == ids, text  # neither cut to 128 tokens nor filled up

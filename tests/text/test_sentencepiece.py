"""Ids are those of llama.cpp and SentencePiece, whose merging goes by scores; text comes back whole."""

from __future__ import annotations

import time
import tracemalloc
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.text.tiny_text import (
    golden,
    sentencepiece_json_source,
    sentencepiece_source,
    sentencepiece_vocabulary,
)
from tidemill.core.errors import ModelLoadError
from tidemill.models.loading.gguf import GgufFile
from tidemill.models.loading.gguf_text import gguf_text_source
from tidemill.text import score_merges
from tidemill.text.score_merges import ScoreMerges
from tidemill.text.source import TextSource
from tidemill.text.tokenizer import Tokenizer, build_tokenizer

FAMILIES = {family: build_tokenizer(sentencepiece_source(family)) for family in ("llama2", "gemma")}
GOLDEN = golden("tiny_sentencepiece.json")
TYPED_MARK = "▁a ▁▁b"  # SentencePiece takes a typed mark for a space before it looks for runs of spaces

# As the files of Llama 2 have it: the space goes before every stretch of text, not only before the first.
LLAMA2_NORMALIZER = {
    "type": "Sequence",
    "normalizers": [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    ],
}


def id_of(tokenizer: Tokenizer, text: str) -> int:
    token = tokenizer.token_id(text)
    assert token is not None
    return token


@pytest.mark.parametrize("family", FAMILIES)
def test_ids_of_a_gguf_vocabulary_are_those_of_llama_cpp(family: str) -> None:
    for text, ids in zip(GOLDEN[family]["texts"], GOLDEN[family]["llama_cpp"], strict=True):
        assert FAMILIES[family].encode(text, add_bos=False) == ids, text


@pytest.mark.parametrize("family", FAMILIES)
def test_ids_of_a_gguf_vocabulary_are_those_of_sentencepiece(family: str) -> None:
    for text, ids in zip(GOLDEN[family]["texts"], GOLDEN[family]["sentencepiece"], strict=True):
        if text != TYPED_MARK:
            assert FAMILIES[family].encode(text, add_bos=False) == ids, text


@pytest.mark.parametrize("family", FAMILIES)
def test_markup_ids_are_those_of_llama_cpp(family: str) -> None:
    for text, ids in zip(GOLDEN[family]["markup"], GOLDEN[family]["markup_llama_cpp"], strict=True):
        assert FAMILIES[family].encode_markup(text) == ids, text


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tokenizer_json_of_the_family_gives_the_ids_of_transformers(family: str) -> None:
    tokenizer = build_tokenizer(sentencepiece_json_source(family))
    for text, ids in zip(GOLDEN[family]["markup"], GOLDEN[family]["markup_transformers"], strict=True):
        assert tokenizer.encode_markup(text) == ids, text


@pytest.mark.parametrize(
    ("family", "parts"),
    [("llama2", {"normalizer": LLAMA2_NORMALIZER, "pre_tokenizer": None}), ("gemma", {})],
)
def test_a_tokenizer_json_with_the_familys_own_rules_gives_the_ids_of_sentencepiece(family: str, parts: Any) -> None:
    tokenizer = build_tokenizer(sentencepiece_json_source(family, **parts))
    for text, ids in zip(GOLDEN[family]["texts"], GOLDEN[family]["sentencepiece"], strict=True):
        if text == TYPED_MARK:
            continue
        assert tokenizer.encode(text, add_bos=False) == ids, text
        assert tokenizer.decode(ids) == text
    for text, ids in zip(GOLDEN[family]["markup"], GOLDEN[family]["markup_llama_cpp"], strict=True):
        assert tokenizer.encode_markup(text) == ids, text


def test_control_tokens_typed_in_a_prompt_are_text() -> None:
    tokenizer = FAMILIES["llama2"]
    for text in ("<s>", "</s> x <|im_start|>", "<unk>", "<0x0A>"):
        ids = tokenizer.encode(text, add_bos=False)
        assert not any(tokenizer.is_special(token) for token in ids)
        assert tokenizer.decode(ids) == text


def test_marks_in_markup_break_control_tokens_and_then_vanish() -> None:
    tokenizer = FAMILIES["llama2"]
    broken = tokenizer.encode_markup("<|im_start|> <\ufdd0s> x", marks=[("\ufdd0", "")])
    assert broken == [id_of(tokenizer, "<|im_start|>"), *tokenizer.encode(" <s> x", add_bos=False)]
    replaced = tokenizer.encode_markup("a\ufdd1b", marks=[("\ufdd0", ""), ("\ufdd1", " ")])
    assert replaced == tokenizer.encode("a b", add_bos=False)


def test_user_defined_tokens_match_in_any_text() -> None:
    tokenizer = FAMILIES["gemma"]
    think, spaces, newlines = (id_of(tokenizer, text) for text in ("<think>", " " * 5, "\n\n\n"))
    assert tokenizer.encode("<think>     \n\n\n", add_bos=False) == [think, spaces, newlines]
    assert not tokenizer.is_special(think)
    assert tokenizer.decode([think, spaces, newlines]) == "<think>     \n\n\n"
    assert tokenizer.token_id("▁" * 5) == spaces  # older files spell them with marks


def test_older_files_spell_user_defined_spaces_with_marks() -> None:
    tokens = [token.replace(" ", "▁") for token in GOLDEN["gemma"]["vocabulary"]["tokens"]]
    older = build_tokenizer(sentencepiece_source("gemma", tokens=tokens))
    for text, ids in zip(GOLDEN["gemma"]["texts"], GOLDEN["gemma"]["llama_cpp"], strict=True):
        assert older.encode(text, add_bos=False) == ids, text


def test_a_character_that_is_no_token_becomes_its_bytes() -> None:
    tokenizer = FAMILIES["gemma"]
    ids = tokenizer.encode("𝔘", add_bos=False)
    assert [tokenizer.token_bytes(token) for token in ids] == [b"\xf0", b"\x9d", b"\x94", b"\x98"]
    assert tokenizer.decode(ids) == "𝔘"
    assert tokenizer.decode(ids[:3]) == "\ufffd"


def test_the_space_before_the_text_is_dropped_once() -> None:
    tokenizer = FAMILIES["llama2"]
    assert tokenizer.leading_spaces == 1
    assert tokenizer.decode(tokenizer.encode("  two")) == "  two"
    word = id_of(tokenizer, "▁the")
    assert tokenizer.decode([word, word]) == "the the"
    assert tokenizer.decode([word], at_start=False) == " the"
    assert FAMILIES["gemma"].decode([id_of(FAMILIES["gemma"], "▁a")]) == " a"


def test_what_goes_around_a_prompt_follows_the_file() -> None:
    hello = FAMILIES["llama2"].encode("Hello", add_bos=False)
    assert FAMILIES["llama2"].encode("Hello") == [1, *hello]  # the family's custom, where the file says nothing
    assert build_tokenizer(sentencepiece_source("llama2", add_bos=False)).encode("Hello") == hello
    assert build_tokenizer(sentencepiece_source("llama2", add_eos=True)).encode("Hello") == [1, *hello, 2]
    assert build_tokenizer(sentencepiece_source("llama2", bos_id=None)).encode("Hello") == hello
    unsaid = build_tokenizer(sentencepiece_source("llama2", add_space_prefix=None))
    assert unsaid.encode("Hello") == [1, *hello]
    bare = build_tokenizer(sentencepiece_source("llama2", add_space_prefix=False)).encode("Hello", add_bos=False)
    assert bare != hello
    assert FAMILIES["llama2"].encode("", add_bos=False) == []


def test_without_types_byte_tokens_are_told_by_their_names() -> None:
    tokenizer = build_tokenizer(sentencepiece_source("gemma", token_types=()))
    assert tokenizer.token_bytes(id_of(tokenizer, "<0xF0>")) == b"\xf0"
    assert tokenizer.decode(tokenizer.encode("𝔘")) == "𝔘"
    assert tokenizer.encode("<s>", add_bos=False) != [1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scores": ()}, "tokenizer.ggml.scores has 0 entries for 900 tokens"),
        ({"token_types": [1]}, "tokenizer.ggml.token_type has 1 entries for 900 tokens"),
        ({"bos_id": 900}, "special token id 900 is outside the vocabulary"),
        ({"token_types": [6] * 900}, "token '<|im_start|>' has the type of a byte, but is not named like one"),
        ({"token_types": [1] * 900, "unk_id": None}, "neither a token for every byte nor an unknown token"),
    ],
)
def test_what_cannot_be_loaded_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError) as refused:
        build_tokenizer(sentencepiece_source("llama2", **changes))
    assert message in refused.value.message
    assert refused.value.message.startswith("sp.gguf: ")


def test_without_byte_tokens_a_run_of_strange_characters_is_one_unknown_token() -> None:
    vocabulary = sentencepiece_vocabulary("gemma")
    kinds = [1 if kind == 6 else kind for kind in vocabulary.token_types]
    tokens = [
        f"byte {i}" if kind == 6 else t
        for i, (t, kind) in enumerate(zip(vocabulary.tokens, vocabulary.token_types, strict=True))
    ]
    tokenizer = build_tokenizer(sentencepiece_source("gemma", tokens=tokens, token_types=kinds))
    a = id_of(tokenizer, "a")
    assert tokenizer.encode("𝔘𝔙a𝔘", add_bos=False) == [0, a, 0]


def naive(text: str, ids: dict[str, int], scores: list[float]) -> list[str]:
    """The rule in three lines: join the best-scored neighbours, the leftmost of equals, until none is left."""
    symbols = list(text)
    while joins := [(-scores[ids[a + b]], i) for i, (a, b) in enumerate(pairwise(symbols)) if a + b in ids]:
        _, place = min(joins)
        symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]
    return symbols


@given(
    st.lists(st.text("ab▁-", min_size=2, max_size=5), max_size=25, unique=True),
    st.lists(st.integers(0, 4), min_size=29, max_size=29),
    st.text("ab▁-", max_size=40),
)
@settings(max_examples=400, deadline=None)
def test_merging_is_the_plain_rule_with_equal_scores_too(words: list[str], scores: list[int], text: str) -> None:
    ids = {word: i for i, word in enumerate([*"ab▁-", *words])}
    weights = [float(score) for score in scores]
    merges = ScoreMerges(ids, weights, byte_ids=None, unknown_id=None)
    assert merges.encode(text) == [ids[symbol] for symbol in naive(text, ids, weights)]


@given(st.text(st.characters(exclude_characters="▁", exclude_categories=["Cs"])), st.sampled_from(sorted(FAMILIES)))
@settings(max_examples=200, deadline=None)
def test_text_comes_back_whole(text: str, family: str) -> None:
    assert FAMILIES[family].decode(FAMILIES[family].encode(text)) == text


def test_words_kept_are_few_and_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_merges, "_WORDS_KEPT", 100)
    tokenizer = build_tokenizer(sentencepiece_source("llama2"))
    tokenizer.encode("warm up")
    tracemalloc.start()
    for number in range(3000):
        tokenizer.encode(f"{number}")
    tokenizer.encode("z" * 20_000)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 60_000


def test_work_does_not_grow_with_the_square_of_the_text() -> None:
    def seconds(size: int) -> float:
        tokenizer = build_tokenizer(sentencepiece_source("llama2"))
        start = time.process_time()
        tokenizer.encode("abc-" * size)
        return time.process_time() - start

    seconds(1000)
    assert seconds(40_000) < 8 * seconds(10_000) + 0.05


def test_a_vocabulary_of_262144_tokens_is_built_in_time() -> None:
    letters = [chr(code) for code in range(0x21, 0x7F)]
    tokens = [f"<0x{byte:02X}>" for byte in range(256)] + letters + [a + b for a in letters for b in letters]
    while len(tokens) < 262_144:
        tokens.append(tokens[len(tokens) - 9000] + letters[len(tokens) % 94])
    vocabulary = sentencepiece_vocabulary(
        "gemma",
        tokens=tokens,
        scores=[float(-i) for i in range(len(tokens))],
        token_types=[6] * 256 + [1] * (len(tokens) - 256),
        bos_id=None,
        eos_id=None,
        unk_id=None,
    )
    start = time.process_time()
    tokenizer = build_tokenizer(TextSource(gguf=vocabulary, where="large"))
    assert time.process_time() - start < 1.5
    assert tokenizer.encode("!!") == [tokens.index("!!")]


def test_gemma3s_own_vocabulary(gemma3_path: Path) -> None:
    source = gguf_text_source(GgufFile(gemma3_path))
    start = time.process_time()
    tokenizer = build_tokenizer(source)
    assert time.process_time() - start < 1.5
    expected = golden("gemma3_ids.json")
    for text, ids in zip(expected["texts"], expected["ids"], strict=True):
        assert tokenizer.encode(text, add_bos=False) == ids, text
        assert "▁" in text or tokenizer.decode(ids) == text
    for text, ids in zip(expected["markup"], expected["markup_ids"], strict=True):
        assert tokenizer.encode_markup(text) == ids, text
    assert tokenizer.encode("a")[0] == tokenizer.bos_id == 2
    assert tokenizer.token_bytes(id_of(tokenizer, "</s>")) == b"</s>"

"""Joined deltas are decode of all ids, whatever the ids and however they arrive."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.text.tiny_text import gguf_source, json_source, sentencepiece_source, space_marking_source
from tidemill.text.detokenizer import IncrementalDetokenizer
from tidemill.text.tokenizer import Tokenizer, build_tokenizer

FAMILIES = {
    "json": build_tokenizer(json_source()),
    "gguf": build_tokenizer(gguf_source()),
    "space-prefix": build_tokenizer(space_marking_source(prefix=True)),
    "space-marks": build_tokenizer(space_marking_source(prefix=False)),
    "llama2": build_tokenizer(sentencepiece_source("llama2")),
    "gemma": build_tokenizer(sentencepiece_source("gemma")),
}


def pieces(tokenizer: Tokenizer, ids: list[int], size: int = 1, **options: bool) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, **options)
    deltas = [detokenizer.push(ids[i : i + size]) for i in range(0, len(ids), size)]
    return [*deltas, detokenizer.flush()]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("text", [" hello", "\nhello", "  , . !", "a , b", "你好 😀", "", "   "])
def test_beginnings_and_spaces_survive(family: str, text: str) -> None:
    tokenizer = FAMILIES[family]
    assert "".join(pieces(tokenizer, tokenizer.encode(text))) == text


def test_a_character_split_over_tokens_appears_once_it_is_whole() -> None:
    tokenizer = FAMILIES["space-marks"]
    ids = [tokenizer.token_id(f"<0x{byte:02X}>") or 0 for byte in "é😀".encode()]
    assert pieces(tokenizer, ids) == ["", "é", "", "", "", "😀", ""]


def test_an_invalid_stretch_becomes_one_replacement_character() -> None:
    tokenizer = FAMILIES["space-marks"]
    cut = [tokenizer.token_id(f"<0x{byte:02X}>") or 0 for byte in "😀".encode()[:3]]
    a = tokenizer.token_id("a")
    assert a is not None
    assert pieces(tokenizer, [*cut, a]) == ["", "", "", "\ufffda", ""]
    assert pieces(tokenizer, cut) == ["", "", "", "\ufffd"]
    assert tokenizer.decode(cut) == "\ufffd"


def test_control_tokens_in_the_middle_are_skipped_or_shown() -> None:
    tokenizer = FAMILIES["gguf"]
    ids = tokenizer.encode_markup("one<|im_end|> two")
    assert "".join(pieces(tokenizer, ids)) == "one two"
    assert "".join(pieces(tokenizer, ids, skip_special=False)) == "one<|im_end|> two"


def test_a_continued_text_keeps_its_space() -> None:
    tokenizer = FAMILIES["space-prefix"]
    space_a = tokenizer.token_id("▁a")
    assert space_a is not None
    assert pieces(tokenizer, [space_a, space_a]) == ["a", " a", ""]
    assert pieces(tokenizer, [space_a, space_a], at_start=False) == [" a", " a", ""]


@given(st.data(), st.sampled_from(sorted(FAMILIES)), st.booleans(), st.booleans())
@settings(max_examples=300, deadline=None)
def test_joined_deltas_are_decode_of_all_ids(data: st.DataObject, family: str, skip: bool, start: bool) -> None:
    tokenizer = FAMILIES[family]
    ids = data.draw(st.lists(st.integers(-1, tokenizer.vocab_size), max_size=40))
    size = data.draw(st.integers(1, 7))
    whole = tokenizer.decode(ids, skip_special=skip, at_start=start)
    assert "".join(pieces(tokenizer, ids, size, skip_special=skip, at_start=start)) == whole


def test_work_per_token_does_not_grow() -> None:
    tokenizer = FAMILIES["gguf"]
    ids = (tokenizer.encode("the tide comes in, 你好 ") * 20_000)[:160_000]
    detokenizer = IncrementalDetokenizer(tokenizer)

    def seconds(part: list[int]) -> float:
        start = time.process_time()
        for token in part:
            detokenizer.push((token,))
        return time.process_time() - start

    seconds(ids[:10_000])
    first, last = seconds(ids[10_000:30_000]), seconds(ids[140_000:])
    assert last < 3 * first + 0.05

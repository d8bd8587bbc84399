"""Ids equal those of transformers and llama.cpp, and text comes back whole."""

from __future__ import annotations

import threading
import time
import unicodedata
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from tests.text.tiny_text import gguf_source, gguf_vocabulary, golden, json_source, space_marking_source
from tidemill.core.errors import InvalidRequest, ModelLoadError
from tidemill.text.pretokenizers import PRE_RULES
from tidemill.text.source import TextSource
from tidemill.text.tokenizer import Tokenizer, build_tokenizer

TINY = {"json": build_tokenizer(json_source()), "gguf": build_tokenizer(gguf_source())}
LIBRARY = Backend.from_str((json_source().tokenizer_json or b"").decode())


def test_plain_ids_are_those_of_transformers(tiny: Tokenizer, tiny_ids: Any) -> None:
    for text, ids in zip(tiny_ids["texts"], tiny_ids["ids"], strict=True):
        assert tiny.encode(text, add_bos=False) == ids, text


def test_markup_ids_are_those_of_transformers(tiny: Tokenizer, tiny_ids: Any) -> None:
    for text, ids in zip(tiny_ids["markup"], tiny_ids["markup_ids"], strict=True):
        assert tiny.encode_markup(text) == ids, text
        assert tiny.encode(text, add_bos=False, allow_special=True) == ids, text


def test_control_tokens_typed_in_a_prompt_are_text(tiny: Tokenizer, tiny_ids: Any) -> None:
    for text, ids in zip(tiny_ids["typed"], tiny_ids["typed_llama_cpp"], strict=True):
        assert tiny.encode(text, add_bos=False) == ids, text
        assert not any(tiny.is_special(token) for token in ids)


def test_user_defined_tokens_match_in_any_text(tiny: Tokenizer) -> None:
    think = tiny.token_id("<think>")
    assert think is not None
    assert think in tiny.encode("x<think>y")
    assert not tiny.is_special(think)
    assert tiny.decode([think]) == "<think>"


# llama.cpp's \s leaves out the no-break space in these, and its words leave out combining marks in those; both belong
# there in the models' own tokenizers.
NO_BREAK_SPACE_DIFFERS = ("deepseek-coder", "deepseek-llm")
COMBINING_MARKS_DIFFER = ("gpt-4o", "llama4", "tekken")


@pytest.mark.parametrize("pre", sorted(golden("tiny_ids.json")["rules_llama_cpp"]))
def test_each_named_rule_cuts_as_llama_cpp_does(pre: str, tiny_ids: Any) -> None:
    tokenizer = build_tokenizer(gguf_source(pre=pre))
    for text, ids in zip(tiny_ids["rule_texts"], tiny_ids["rules_llama_cpp"][pre], strict=True):
        if pre in NO_BREAK_SPACE_DIFFERS and "\u00a0" in text:
            continue
        if pre in COMBINING_MARKS_DIFFER and any(unicodedata.category(c).startswith("M") for c in text):
            continue
        assert tokenizer.encode(text, add_bos=False) == ids, text


def test_a_word_with_combining_marks_is_whole_where_the_models_own_rule_says_so() -> None:
    cut = PRE_RULES["tekken"].pre_tokenizer().pre_tokenize_str("नमस्ते दुनिया camelCase")
    assert [end for _, (_, end) in cut] == [6, 13, 19, 23]
    assert len(PRE_RULES["qwen2"].pre_tokenizer().pre_tokenize_str("नमस्ते")) == 3


@pytest.mark.parametrize(
    ("pre", "text", "ends"),
    [
        ("tekken", "x/\n/y", [1, 4, 5]),  # a slash may follow the line break that ends a run of signs
        ("gpt-4o", "x/\n/y", [1, 4, 5]),
        ("qwen2", "x/\n/y", [1, 3, 5]),
        ("deepseek-llm", "😀  ", [1, 3]),  # spaces at the end are apart, whatever stands before them
        ("deepseek-llm", "😀  😀", [4]),
    ],
)
def test_cuts_that_few_texts_show(pre: str, text: str, ends: list[int]) -> None:
    assert [end for _, (_, end) in PRE_RULES[pre].pre_tokenizer().pre_tokenize_str(text)] == ends


@pytest.mark.parametrize("pre", ["gpt-2", "qwen2", "llama-bpe"])
def test_families_that_transformers_has_a_class_for(pre: str, tiny_ids: Any) -> None:
    tokenizer = build_tokenizer(gguf_source(pre=pre))
    for text, ids in zip(tiny_ids["texts"], tiny_ids["rules_transformers"][pre], strict=True):
        assert tokenizer.encode(text, add_bos=False) == ids, text


def test_llama3_takes_a_piece_that_is_a_token_as_that_token() -> None:
    given = golden("tiny_gguf.json")
    tokens = [*given["tokens"], "Ġqzqz"]  # no merges lead to it
    changes = {"tokens": tokens, "token_types": [*given["token_types"], 1]}
    whole = build_tokenizer(gguf_source(pre="llama-bpe", **changes)).encode("a qzqz", add_bos=False)
    merged = build_tokenizer(gguf_source(pre="dbrx", **changes)).encode("a qzqz", add_bos=False)
    assert whole[-1] == len(tokens) - 1
    assert len(tokens) - 1 not in merged


def test_a_file_without_a_rule_is_gpt2s(tiny_ids: Any) -> None:
    for pre in ("", "default"):
        tokenizer = build_tokenizer(gguf_source(pre=pre))
        for text, ids in zip(tiny_ids["texts"], tiny_ids["rules_transformers"]["gpt-2"], strict=True):
            assert tokenizer.encode(text, add_bos=False) == ids, text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "t5"}, "tokenizer.ggml.model 't5' is not supported (gpt2, llama and bert are)"),
        ({"pre": "made-up"}, "tokenizer.ggml.pre 'made-up' is not known"),
        ({"token_types": [1, 1]}, "tokenizer.ggml.token_type has 2 entries for"),
        ({"merges": ["nowhere tobefound"]}, "tokenizer.ggml.merges do not fit the vocabulary"),
        ({"merges": ["a"]}, "tokenizer.ggml.merges do not fit the vocabulary"),
        ({"bos_id": 10**6}, "special token id 1000000 is outside the vocabulary"),
        ({"bos_id": None, "add_bos": True}, "asks for a BOS token but names none"),
    ],
)
def test_what_cannot_be_loaded_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError) as refused:
        build_tokenizer(gguf_source(**changes))
    assert message in refused.value.message
    assert refused.value.message.startswith("tiny.gguf: ")
    assert "\n" not in refused.value.message


@pytest.mark.parametrize("content", [b"", b"{}", b'{"model": 1}', b"\xff", b"[1, 2"])
def test_a_damaged_tokenizer_json_is_refused(content: bytes) -> None:
    with pytest.raises(ModelLoadError, match=r"^tiny: tokenizer\.json cannot be read"):
        build_tokenizer(json_source(tokenizer_json=content))


def test_a_name_that_occurs_twice_counts_as_two_ids() -> None:
    given = golden("tiny_gguf.json")
    doubled = gguf_source(tokens=[*given["tokens"], "a"], token_types=[*given["token_types"], 1])
    assert build_tokenizer(doubled).vocab_size == len(given["tokens"]) + 1


def test_exactly_one_source_is_needed() -> None:
    for source in (TextSource(), json_source(gguf=gguf_vocabulary())):
        with pytest.raises(ModelLoadError, match="either"):
            build_tokenizer(source)


def test_bos_of_plain_prompts_follows_the_tokenizer() -> None:
    hello = build_tokenizer(gguf_source()).encode("Hello")
    assert hello == golden("tiny_ids.json")["ids"][2]
    # tokenizer.json: its post-processor puts <|begin|> first; the configuration may say no
    assert build_tokenizer(json_source()).encode("Hello") == [0, *hello]
    assert build_tokenizer(json_source(add_bos=True)).encode("Hello") == [0, *hello]
    assert build_tokenizer(json_source(add_bos=False)).encode("Hello") == hello
    # GGUF: the flag; absent, the family's custom (Llama 3 yes, the others no)
    assert build_tokenizer(gguf_source(add_bos=True)).encode("Hello") == [0, *hello]
    assert build_tokenizer(gguf_source(add_bos=False)).encode("Hello") == hello
    assert build_tokenizer(gguf_source(pre="llama-bpe")).encode("Hello")[0] == 0
    assert build_tokenizer(gguf_source(pre="llama-bpe", add_bos=False)).encode("Hello")[0] != 0
    assert build_tokenizer(gguf_source(add_eos=True)).encode("Hello") == [*hello, 2]


def test_bos_as_the_caller_says() -> None:
    tokenizer = build_tokenizer(gguf_source(add_bos=False))
    assert tokenizer.encode("", add_bos=True) == [0]
    assert tokenizer.encode("") == []
    assert TINY["json"].encode("") == [0]
    assert TINY["json"].encode("", add_bos=False) == []
    with pytest.raises(InvalidRequest, match="no begin-of-text token"):
        build_tokenizer(gguf_source(bos_id=None)).encode("Hello", add_bos=True)


def test_a_prompt_that_types_bos_gets_text_and_one_bos() -> None:
    ids = TINY["json"].encode("<|begin|>Hello")
    assert ids.count(0) == 1
    assert TINY["json"].decode(ids) == "<|begin|>Hello"


def test_a_token_named_by_the_configuration_is_a_control_token() -> None:
    tokenizer = build_tokenizer(json_source(special_tokens={"eos_token": "</think>", "pad_token": "not there"}))
    end = tokenizer.token_id("</think>")
    assert end is not None
    assert tokenizer.is_special(end)
    assert end not in tokenizer.encode("</think>")
    assert tokenizer.encode_markup("</think>") == [end]
    assert tokenizer.vocab_size == TINY["json"].vocab_size


def test_half_a_surrogate_pair_is_a_bad_request(tiny: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match="half a surrogate pair at character 2"):
        tiny.encode("ab\ud83d")


def test_bytes_of_a_token_are_exact(tiny: Tokenizer) -> None:
    ids = tiny.encode("\U0001f98a", add_bos=False)  # not in the training text: single bytes
    assert [tiny.token_bytes(token) for token in ids] == [b"\xf0", b"\x9f", b"\xa6", b"\x8a"] or len(ids) < 4
    assert b"".join(map(tiny.token_bytes, ids)) == "\U0001f98a".encode()
    assert tiny.token_bytes(0) == b"<|begin|>"
    assert tiny.visible_bytes(0) == b""
    assert tiny.token_text(ids[0]) == "\ufffd"


def test_ids_outside_the_vocabulary_have_no_text(tiny: Tokenizer) -> None:
    for token in (-1, tiny.vocab_size, 2**31, 2**40):
        assert tiny.token_bytes(token) == b""
        assert not tiny.is_special(token)


def test_control_tokens_are_left_out_unless_asked_for(tiny: Tokenizer) -> None:
    ids = tiny.encode_markup("<|im_start|> hello<|im_end|>.")
    assert tiny.decode(ids) == " hello."
    assert tiny.decode(ids, skip_special=False) == "<|im_start|> hello<|im_end|>."


def test_no_space_is_cleaned_up_before_punctuation(tiny: Tokenizer) -> None:
    text = "Hello , world ! it 's ' fine ' . do n't ?"
    assert tiny.decode(tiny.encode(text)) == text


@given(st.text(), st.sampled_from(sorted(TINY)))
@settings(max_examples=200, deadline=None)
def test_text_comes_back_whole(text: str, kind: str) -> None:
    tokenizer = TINY[kind]
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(st.lists(st.integers(0, TINY["json"].vocab_size - 1)))
@settings(max_examples=200, deadline=None)
def test_decode_is_the_librarys_decode(ids: list[int]) -> None:
    for skip in (True, False):
        assert TINY["json"].decode(ids, skip_special=skip) == LIBRARY.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("prefix", [True, False])
def test_vocabularies_with_byte_tokens_and_space_marks(prefix: bool) -> None:
    source = space_marking_source(prefix=prefix)
    tokenizer = build_tokenizer(source)
    library = Backend.from_str((source.tokenizer_json or b"").decode())
    for text in ("a b", " a", "  a", "你 好 a", "\n", "", "é😀"):
        ids = tokenizer.encode(text)
        assert ids == library.encode(text).ids
        assert ids[0] == tokenizer.bos_id == 1
        assert tokenizer.decode(ids) == text == library.decode(ids)
    assert tokenizer.leading_spaces == int(prefix)
    space_a = tokenizer.token_id("▁a")
    assert space_a is not None
    assert tokenizer.decode([space_a], at_start=False) == " a"


@pytest.mark.parametrize(("decoder", "message"), [(decoders.CTC(), "CTC is not supported"), (None, "has no decoder")])
def test_a_decoder_whose_tokens_are_no_bytes_is_refused(decoder: Any, message: str) -> None:
    backend = Backend(models.BPE({"a": 0}, []))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    if decoder is not None:
        backend.decoder = decoder
    with pytest.raises(ModelLoadError, match=message):
        build_tokenizer(TextSource(tokenizer_json=backend.to_str().encode(), where="x"))


def test_a_vocabulary_of_262144_tokens_is_built_in_time() -> None:
    letters = [chr(code) for code in range(0x21, 0x7F)]
    tokens = list(letters)
    for left in range(2 * len(letters) ** 2):
        if len(tokens) == 262_144:
            break
        for right in letters:
            tokens.append(tokens[left] + right)
    tokens = tokens[:262_144]
    merges = [f"{token[:-1]} {token[-1]}" for token in tokens[len(letters) :]]
    vocabulary = gguf_vocabulary(tokens=tokens, token_types=[1] * len(tokens), merges=merges)
    start = time.process_time()
    tokenizer = build_tokenizer(TextSource(gguf=vocabulary, where="large"))
    assert time.process_time() - start < 1.5
    assert tokenizer.vocab_size == 262_144
    assert tokenizer.encode("!!!") == [tokens.index("!!!")]


def test_cutting_a_long_text_leaves_the_interpreter_to_others() -> None:
    """Else every stream of a server waits for the prompt of somebody else."""
    done = threading.Event()

    def cut() -> None:
        TINY["json"].encode("The tide comes twice a day, " * 40_000)
        done.set()

    thread = threading.Thread(target=cut)
    turns = 0
    thread.start()
    while not done.is_set():
        turns += 1
        time.sleep(0)
    thread.join()
    assert turns > 20

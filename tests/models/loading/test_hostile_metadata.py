"""Whatever the metadata and tensors of a well-formed GGUF file say: one line, or a model of use."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.gguf_bytes import (
    ARRAY,
    STRING,
    Tensor,
    array,
    gguf_bytes,
    tiny_llama_metadata,
    tiny_llama_tensors,
)
from tests.support.hostile import examples
from tidemill.core.config import ModelConfig
from tidemill.core.errors import TidemillError
from tidemill.models.loading import load_model
from tidemill.models.loading.gguf_dialects import DIALECTS
from tidemill.text.chat import build_chat_encoder
from tidemill.text.tokenizer import build_tokenizer

VALUES: list[Any] = [
    True, False, 0, -1, -(2**31), 1, 2, 3, 7, 2**31 - 1, 2**32 - 1, 0.0, -1.0, math.nan, math.inf, 1e38,
    "", "a", "a\nb\x1b", "gpt2", "llama", "bert", "none", "yarn", "x" * 100_000,
    ["a"], ["", "b"], [1], [0, 0], [-1, 5], [1] * 8,
    array(6, 3, struct.pack("<3f", 1, math.nan, 2)), array(ARRAY, 1, array(4, 1, bytes(4))), array(ARRAY, 0, b""),
    array(STRING, 0, b""), array(7, 2, b"\1\0"), array(6, 8, bytes(32)), array(6, 0, b""), array(12, 1, bytes(8)),
]  # fmt: skip
KEYS = [
    *("foo", "expert_count", "expert_used_count", "rope.dimension_count", "attention.key_length", "rope.scaling.type"),
    *("attention.value_length", "rope.scaling.factor", "rope.scale_linear", "rope.scaling.attn_factor", "vocab_size"),
    *("rope.scaling.original_context_length", "rope.scaling.finetuned", "attention.sliding_window"),
    *("attention.sliding_window_pattern", "attention.scale", "expert_feed_forward_length", "attn_logit_softcapping"),
]
OTHER_KEYS = [
    *(f"tokenizer.ggml.{key}" for key in ("pre", "add_bos_token", "add_eos_token", "add_space_prefix", "scores")),
    *(f"tokenizer.ggml.{key}_token_id" for key in ("unknown", "padding", "seperator", "cls", "eot", "eom")),
    *("tokenizer.chat_template", "tokenizer.chat_template.tool_use", "general.type", "general.alignment"),
    *("general.architecture", "split.count", "split.no", "general.license"),
]
SHAPES = [
    (), (0,), (1,), (2,), (8,), (4,), (8, 8), (1, 2, 4, 8), (2**63,), (2**64 - 1, 2), (2**32, 2**32), (3, 8, 8),
]  # fmt: skip
NAMES = [
    *tiny_llama_tensors(), "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight",
    "blk.0.attn_q.bias", "output.weight", "x\ny", "blk.99999999999.attn_q.weight", "blk.0.ffn_gate_exps.weight",
]  # fmt: skip


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile") / "model.gguf"


@st.composite
def files(draw: st.DrawFn) -> bytes:
    metadata = tiny_llama_metadata(tokenizer__chat_template="{{ messages }}")
    if draw(st.booleans()):
        scores = array(6, 8, struct.pack("<8f", *range(8)))
        metadata |= {"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": scores}
    keys = [*metadata, *OTHER_KEYS, *(f"llama.{key}" for key in KEYS)]
    for key, value in draw(st.lists(st.tuples(st.sampled_from(keys), st.sampled_from(VALUES)), max_size=3)):
        metadata[key] = value
    for key in draw(st.lists(st.sampled_from(keys), max_size=1)):
        metadata.pop(key, None)
    architecture = draw(st.sampled_from(["llama", "llama", *DIALECTS]))
    metadata = {key.replace("llama.", f"{architecture}.", 1): value for key, value in metadata.items()}
    if metadata.get("general.architecture") == "llama":
        metadata["general.architecture"] = architecture
    tensors = tiny_llama_tensors()
    for name in draw(st.lists(st.sampled_from(NAMES), max_size=2)):
        shape = draw(st.sampled_from(SHAPES))
        kind = draw(st.sampled_from([0, 0, 1, 2, 12, 24, 99, 2**32 - 1]))
        tensors[name] = Tensor(shape=shape, data=bytes(min(math.prod(shape) * 4, 4096)), kind=kind)
    return gguf_bytes(metadata, tensors)


@given(files())
@settings(max_examples=examples(400), deadline=2000)
def test_one_line_or_a_model_of_use(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    error = problem(path)
    if error is not None:
        assert error.message.isprintable()
        assert len(error.message) < 2000
        assert error.status == 400 or error.message.startswith(str(path))


def problem(path: Path) -> TidemillError | None:
    """What is wrong with a model, if it is of no use."""
    try:
        model = load_model(ModelConfig(path=str(path)))
        dict(model.weights)
        tokenizer = build_tokenizer(model.text)
        tokenizer.decode(tokenizer.encode("abcd hello\n世 😀"))
        build_chat_encoder(model.text, tokenizer).encode([{"role": "user", "content": "hi"}])
    except TidemillError as error:
        return error
    return None


def test_most_of_these_files_are_good_but_for_one_thing(path: Path) -> None:
    path.write_bytes(gguf_bytes(tiny_llama_metadata(), tiny_llama_tensors()))
    assert load_model(ModelConfig(path=str(path))).vocab_size == 8


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"llama.foo": ["a"]}, "llama.foo is .*: this build does not know this key"),
        ({"llama.rope.dimension_count": [1, 2]}, "llama.rope.dimension_count must be a whole number"),
        ({"llama.attention.value_length": [4] * 8}, "llama.attention.value_length must be a whole number"),
        ({"tokenizer.ggml.tokens": 3}, "vocab_size is missing|tokenizer.ggml.tokens must be an array of text"),
        ({"tokenizer.ggml.bos_token_id": -5}, "special token id -5 is outside the vocabulary"),
        ({"tokenizer.ggml.bos_token_id": True}, "tokenizer.ggml.bos_token_id must be int, not True"),
    ],
)
def test_values_of_another_kind_are_named(path: Path, changes: dict[str, Any], message: str) -> None:
    path.write_bytes(gguf_bytes(tiny_llama_metadata() | changes, tiny_llama_tensors()))
    with pytest.raises(TidemillError, match=message):
        build_tokenizer(load_model(ModelConfig(path=str(path))).text)


@pytest.mark.parametrize("name", ["rope_freqs.weight", "rope_factors_long.weight"])
def test_rope_divisors_of_another_shape_are_named(path: Path, name: str) -> None:
    tensors = tiny_llama_tensors() | {name: Tensor(shape=(2, 2, 8), data=bytes(128))}
    tensors |= {"rope_factors_short.weight": Tensor(shape=(2,), data=struct.pack("<2f", 1, 1))}
    path.write_bytes(gguf_bytes(tiny_llama_metadata(), tensors))
    with pytest.raises(TidemillError, match=rf"tensor {name} \[2, 2, 8\] f32 has the wrong shape"):
        load_model(ModelConfig(path=str(path)))

"""End tokens and chat templates, wherever the files put them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from tests.support.gguf_bytes import gguf_bytes
from tests.support.gguf_bytes import tiny_llama_metadata as metadata
from tests.support.gguf_bytes import tiny_llama_tensors as tensors
from tests.support.model_folder import TOKENIZER, write_folder
from tidemill.core.config import ModelConfig
from tidemill.core.errors import ModelLoadError
from tidemill.models.loading import load_model, load_text_source
from tidemill.text.source import TextSource


def gguf(folder: Path, **changes: Any) -> TextSource:
    path = folder / "tiny.gguf"
    path.write_bytes(gguf_bytes(metadata(**changes), tensors()))
    return load_text_source(str(path))


def folder_text(folder: Path, config: dict[str, Any] | None = None, **files: Any) -> TextSource:
    named = {
        name.replace("__", "/").replace("_json", ".json").replace("_jinja", ".jinja"): files[name] for name in files
    }
    return load_text_source(str(write_folder(folder, config=config, files=named)))


NONE_KNOWN = {**TOKENIZER, "added_tokens": []}

# --- end tokens: 4 <|im_end|> and 5 <|eot_id|> are control tokens, 6 </s> is an ordinary one -----------------------


def test_a_gguf_file_ends_on_every_end_it_names_or_is_known_for(tmp_path: Path) -> None:
    assert gguf(tmp_path).end_token_ids == (4, 5)
    assert gguf(tmp_path, tokenizer__ggml__eos_token_id=6).end_token_ids == (4, 5, 6)
    named = {"tokenizer__ggml__eot_token_id": 1, "tokenizer__ggml__eom_token_id": 2}
    assert gguf(tmp_path, **named).end_token_ids == (1, 2, 4, 5)


def test_without_token_types_only_named_ends_count(tmp_path: Path) -> None:
    assert gguf(tmp_path, tokenizer__ggml__token_type=None).end_token_ids == (4,)


def test_an_end_outside_the_vocabulary_is_left_out(tmp_path: Path) -> None:
    assert gguf(tmp_path, tokenizer__ggml__eos_token_id=800).end_token_ids == (4, 5)


@pytest.mark.parametrize(
    ("config", "files", "expected"),
    [
        ({}, {}, ()),
        ({"eos_token_id": 2}, {}, (2,)),
        ({"eos_token_id": [2, 3]}, {}, (2, 3)),
        ({"eos_token_id": 2}, {"generation_config_json": {"eos_token_id": 1}}, (1, 2)),
        ({"eos_token_id": 2}, {"generation_config_json": {"eos_token_id": [3, 1, 2]}}, (1, 2, 3)),
        ({}, {"generation_config_json": {}}, ()),
        ({}, {"generation_config_json": {"eos_token_id": None}}, ()),
        ({"eos_token_id": 2}, {"tokenizer_config_json": {"eos_token": "d"}}, (2, 3)),
        ({}, {"tokenizer_config_json": {"eos_token": {"content": "d"}}}, (3,)),
        ({}, {"special_tokens_map_json": {"eos_token": "c"}}, (2,)),
        ({"eos_token_id": 800}, {}, ()),
    ],
)
def test_a_folder_ends_on_the_union(
    tmp_path: Path, config: dict[str, Any], files: dict[str, Any], expected: tuple[int, ...]
) -> None:
    assert folder_text(tmp_path, config, tokenizer_json=NONE_KNOWN, **files).end_token_ids == expected


def test_a_folder_also_ends_on_special_tokens_that_are_known_for_it(tmp_path: Path) -> None:
    assert folder_text(tmp_path, {"eos_token_id": 3}).end_token_ids == (3, 4, 5)


CHANNELS = ["<|endoftext|>", "<|return|>", "<|start|>", "<|end|>", "<|call|>"]


def channel_tokens(texts: list[str]) -> dict[str, Any]:
    """A vocabulary of eight with these control tokens from 2 on."""
    added = [{"id": 2 + i, "content": text, "special": True} for i, text in enumerate(texts)]
    return {**TOKENIZER, "added_tokens": added}


def test_gpt_oss_ends_on_its_three_ends_and_not_between_its_channels(tmp_path: Path) -> None:
    """Where <|return|> and <|call|> are control tokens, <|end|> only ends a message (2 <|endoftext|>, 3 <|return|>,
    5 <|end|>, 6 <|call|>); elsewhere it ends the answer, as in Phi-3's vocabulary."""
    assert folder_text(tmp_path, tokenizer_json=channel_tokens(CHANNELS)).end_token_ids == (2, 3, 6)
    assert folder_text(tmp_path, {"eos_token_id": 3}, tokenizer_json=channel_tokens(CHANNELS[:4])).end_token_ids == (
        2,
        3,
        5,
    )
    file = {
        "tokenizer__ggml__tokens": ["a", "b", *CHANNELS, "c"],
        "tokenizer__ggml__token_type": [1, 1, 3, 3, 3, 3, 3, 1],
        "tokenizer__ggml__eos_token_id": 3,
    }
    assert gguf(tmp_path, **file).end_token_ids == (2, 3, 6)
    named = {**file, "tokenizer__ggml__eot_token_id": 5}
    assert gguf(tmp_path, **named).end_token_ids == (2, 3, 5, 6)


def test_the_model_and_its_text_agree(tmp_path: Path) -> None:
    model = load_model(ModelConfig(path=str(write_folder(tmp_path, config={"eos_token_id": [1]}))))
    assert model.end_token_ids == model.text.end_token_ids == (1, 4, 5)


def test_an_end_that_is_no_id_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"generation_config.json: eos_token_id must be a token id or a list"):
        folder_text(tmp_path, generation_config_json={"eos_token_id": "</s>"})


# --- chat templates -----------------------------------------------------------------------------------------------


def test_templates_of_a_gguf_file(tmp_path: Path) -> None:
    assert gguf(tmp_path).chat_templates == {}
    assert gguf(tmp_path, tokenizer__chat_template="one").chat_templates == {"default": "one"}
    two = {"tokenizer__chat_template": "one", "tokenizer__chat_template__tool_use": "two"}
    assert gguf(tmp_path, **two).chat_templates == {"default": "one", "tool_use": "two"}


LISTED = [{"name": "default", "template": "one"}, {"name": "tool_use", "template": "two"}]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, {}),
        ({"tokenizer_config_json": {"chat_template": "one"}}, {"default": "one"}),
        ({"tokenizer_config_json": {"chat_template": LISTED}}, {"default": "one", "tool_use": "two"}),
        ({"chat_template_json": {"chat_template": "three"}}, {"default": "three"}),
        ({"chat_template_jinja": "four"}, {"default": "four"}),
        (
            {"tokenizer_config_json": {"chat_template": LISTED}, "chat_template_jinja": "four"},
            {"default": "four", "tool_use": "two"},
        ),
        (
            {"chat_template_jinja": "four", "additional_chat_templates__rag_jinja": "five"},
            {"default": "four", "rag": "five"},
        ),
    ],
)
def test_templates_of_a_folder(tmp_path: Path, files: dict[str, Any], expected: dict[str, str]) -> None:
    assert folder_text(tmp_path, **files).chat_templates == expected


def test_a_template_of_another_form_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"tokenizer_config.json: chat_template must be text or a list"):
        folder_text(tmp_path, tokenizer_config_json={"chat_template": [{"name": "default"}]})


def test_a_template_given_by_hand_replaces_all(tmp_path: Path) -> None:
    template = tmp_path / "mine.jinja"
    template.write_text("mine")
    folder = write_folder(tmp_path, files={"chat_template.jinja": "four"})
    config = ModelConfig(path=str(folder), chat_template=str(template))
    assert load_model(config).text.chat_templates == {"default": "mine"}
    with pytest.raises(ModelLoadError, match=r"no.jinja: cannot be read"):
        load_text_source(str(folder), str(tmp_path / "no.jinja"))


# --- vocabulary and special tokens --------------------------------------------------------------------------------


def test_the_vocabulary_of_a_gguf_file(tmp_path: Path) -> None:
    source = gguf(tmp_path, tokenizer__ggml__pre="llama-bpe", tokenizer__ggml__add_bos_token=True)
    vocabulary = source.gguf
    assert vocabulary is not None
    assert (vocabulary.model, vocabulary.pre, vocabulary.bos_id, vocabulary.eos_id) == ("gpt2", "llama-bpe", 7, 4)
    assert (vocabulary.add_bos, vocabulary.add_eos, source.add_bos) == (True, None, True)
    assert list(vocabulary.tokens)[:4] == ["a", "b", "c", "d"]
    assert vocabulary.token_types == [1, 1, 1, 1, 3, 3, 1, 3]
    assert source.special_tokens == {"bos_token": "<s>", "eos_token": "<|im_end|>"}
    assert source.tokenizer_json is None


def test_a_text_source_can_be_sent_to_another_process(tmp_path: Path) -> None:
    source = gguf(tmp_path)
    copy = pickle.loads(pickle.dumps(source))
    assert source.gguf is not None
    assert list(copy.gguf.tokens) == list(source.gguf.tokens)
    assert copy.end_token_ids == source.end_token_ids


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tokenizer__ggml__tokens": None}, "tokenizer.ggml.tokens is missing"),
        ({"tokenizer__ggml__tokens": 5}, "tokenizer.ggml.tokens must be an array of text"),
        ({"tokenizer__ggml__token_type": [1, 2]}, "tokenizer.ggml.token_type must be an array of 8 numbers"),
        ({"tokenizer__ggml__model": 5}, "tokenizer.ggml.model must be str, not 5"),
        ({"tokenizer__ggml__bos_token_id": "7"}, "tokenizer.ggml.bos_token_id must be int, not '7'"),
        ({"tokenizer__chat_template": 3}, "tokenizer.chat_template must be str, not 3"),
    ],
)
def test_a_damaged_gguf_vocabulary_is_refused(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelLoadError) as error:
        gguf(tmp_path, **changes)
    assert reason in error.value.message


def test_special_tokens_and_bos_of_a_folder(tmp_path: Path) -> None:
    source = folder_text(
        tmp_path,
        tokenizer_config_json={"bos_token": {"content": "<s>"}, "eos_token": None, "add_bos_token": False},
        special_tokens_map_json={"eos_token": "d", "bos_token": "x"},
    )
    assert source.special_tokens == {"bos_token": "<s>", "eos_token": "d"}
    assert source.add_bos is False
    assert source.gguf is None
    assert source.tokenizer_json is not None


@pytest.mark.parametrize("content", ["", "[]", '{"model": {}, "added_tokens": [{"id": "x"}]}'])
def test_a_damaged_tokenizer_is_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(ModelLoadError, match=r"tokenizer.json: is not a tokenizer"):
        folder_text(tmp_path, tokenizer_json=content)


def test_a_folder_without_tokenizer_json_is_refused(tmp_path: Path) -> None:
    (write_folder(tmp_path) / "tokenizer.json").unlink()
    with pytest.raises(ModelLoadError, match=r"tokenizer.json: cannot be read: .*this build needs a tokenizer.json"):
        load_text_source(str(tmp_path))

"""Whatever the JSON files of a model's folder hold: one line that names the file, or a model of use."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.hostile import examples, mutated
from tests.support.model_folder import CONFIG, SHAPES, safetensors_bytes, zeros
from tests.support.tiny import VARIANTS
from tidemill.core.config import ModelConfig
from tidemill.core.errors import ModelLoadError, TidemillError
from tidemill.models.description import describe
from tidemill.models.loading import load_model
from tidemill.models.loading.resolve import resolve
from tidemill.models.shape import read_shape
from tidemill.text.chat import build_chat_encoder
from tidemill.text.tokenizer import build_tokenizer

GOLDEN = Path(__file__).parents[2] / "golden" / "text"
TOKENIZERS = [json.loads((GOLDEN / f"tiny_{name}tokenizer.json").read_text()) for name in ("", "gemma_", "llama2_")]
WEIGHTS = safetensors_bytes({name: zeros(shape) for name, shape in SHAPES.items()})
FILES: dict[str, Any] = {
    "config.json": CONFIG | {"eos_token_id": 1, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    "tokenizer.json": TOKENIZERS[0],
    "tokenizer_config.json": {
        "bos_token": "<s>",
        "eos_token": {"content": "</s>"},
        "add_bos_token": False,
        "chat_template": "{{ messages }}",
    },
    "generation_config.json": {"eos_token_id": [1, 2]},
    "special_tokens_map.json": {"bos_token": "<s>"},
    "chat_template.json": {"chat_template": [{"name": "default", "template": "x"}]},
    "model.safetensors.index.json": {"metadata": {}, "weight_map": dict.fromkeys(SHAPES, "model.safetensors")},
}
USUAL = {
    "attention_bias": False, "mlp_bias": False, "hidden_act": "silu", "rope_theta": 1e4, "head_dim": 4,
    "layer_types": ["full_attention"], "max_window_layers": 1, "use_sliding_window": True, "sliding_window": 4,
    "partial_rotary_factor": 1.0, "sliding_window_pattern": 2, "text_config": None, "quantization_config": None,
    "rope_parameters": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                        "original_max_position_embeddings": 16},
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile")


def written(folder: Path, files: dict[str, Any]) -> Path:
    (folder / "model.safetensors").write_bytes(WEIGHTS)
    for name, value in files.items():
        (folder / name).write_text(json.dumps(value))
    return folder


def use(folder: Path) -> None:
    """Everything that is done with a model's files before the first request, and the text work of one."""
    model = load_model(ModelConfig(path=str(folder)))
    describe(model, resolve(str(folder)))
    tokenizer = build_tokenizer(model.text)
    ids = tokenizer.encode("Hello ab  <s> 123\n世界 😀")
    tokenizer.decode(ids)
    for token in range(min(tokenizer.vocab_size, 300)):
        tokenizer.token_bytes(token)
    build_chat_encoder(model.text, tokenizer).encode([{"role": "user", "content": "hi"}])


def check(error: TidemillError, folder: Path) -> None:
    assert error.message.isprintable()
    assert len(error.message) < 2000
    assert error.status == 400 or str(folder) in error.message
    assert error.message.startswith(str(folder)) or not isinstance(error, ModelLoadError)


@given(st.data())
@settings(max_examples=examples(250), deadline=2000)
def test_each_file_of_a_folder(folder: Path, data: st.DataObject) -> None:
    files = copy.deepcopy(FILES)
    name = data.draw(st.sampled_from(sorted(FILES)))
    if name == "tokenizer.json":
        files[name] = data.draw(st.sampled_from(TOKENIZERS))
    files[name] = data.draw(mutated(files[name]))
    try:
        use(written(folder, files))
    except TidemillError as error:
        check(error, folder)


@given(st.data())
@settings(max_examples=examples(300), deadline=2000)
def test_the_configuration_of_each_architecture(folder: Path, data: st.DataObject) -> None:
    bare = folder / "bare"
    bare.mkdir(exist_ok=True)
    config = CONFIG | dict(data.draw(st.sampled_from(sorted(VARIANTS.values(), key=str))))
    config |= {name: USUAL[name] for name in data.draw(st.sets(st.sampled_from(sorted(USUAL)), max_size=4))}
    (bare / "config.json").write_text(json.dumps(data.draw(mutated(config))))
    try:
        read_shape(ModelConfig(path=str(bare)))
    except ModelLoadError as error:
        check(error, bare)


def test_the_folder_itself_is_of_use(folder: Path) -> None:
    use(written(folder, FILES))


@pytest.mark.parametrize("name", [*FILES, "chat_template.jinja", "model.safetensors"])
def test_half_a_surrogate_pair_deep_nesting_and_bytes_that_are_no_text(folder: Path, name: str) -> None:
    for content in (b"[" * 200_000, b"\xff\xfe\xfa", b'{"a": "\\ud800"}', b'{"model": ' + b"[" * 200_000, b"\x00" * 9):
        written(folder, FILES)
        (folder / name).write_bytes(content)
        try:
            use(folder)
        except TidemillError as error:
            check(error, folder)
    (folder / "chat_template.jinja").unlink(missing_ok=True)

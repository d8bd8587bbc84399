"""What a model's files say of embedding, what settings change of it, and what is refused by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tidemill.core.config import ModelConfig
from tidemill.core.embedding import Embedding
from tidemill.core.errors import ModelLoadError
from tidemill.graph.graph import Pool
from tidemill.models.fields import Fields
from tidemill.models.loading import load_model
from tidemill.models.model import Model
from tidemill.models.registry import build_graph
from tidemill.models.shape import read_shape

GOLDEN = Path(__file__).parents[2] / "golden" / "data"


@pytest.fixture
def folder(tmp_path: Path) -> Callable[[str], Path]:
    def copied(case: str) -> Path:
        return Path(shutil.copytree(GOLDEN / case, tmp_path / case))

    return copied


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def load(path: Path, **settings: Any) -> Model:
    return load_model(ModelConfig(path=str(path), **settings))


def modules(path: Path, *kinds: str) -> None:
    listed = [{"type": f"sentence_transformers.models.{kind}", "path": "1_Pooling"} for kind in kinds]
    (path / "modules.json").write_text(json.dumps(listed))


def test_settings_come_before_files() -> None:
    assert load(GOLDEN / "bert", pooling="cls", normalize="off").embedding == Embedding(
        pooling="cls", normalize=False, width=32
    )
    assert load(GOLDEN / "bert_cls", normalize="on").embedding == Embedding(pooling="cls", normalize=True, width=32)
    assert load(GOLDEN / "bert", matryoshka=True).embedding == Embedding(
        pooling="mean", normalize=True, width=32, shorter=()
    )


def test_without_a_word_an_encoder_gives_normalised_means_and_a_decoder_generates(
    folder: Callable[[str], Path],
) -> None:
    bert, qwen = folder("bert_cls"), folder("qwen3")
    (bert / "modules.json").unlink()
    assert load(bert).embedding == Embedding(pooling="mean", normalize=True, width=32)
    assert load(qwen).embedding is None
    embeds = load(qwen, pooling="last")
    assert embeds.embedding == Embedding(pooling="last", normalize=True, width=32)
    assert "lm_head.weight" not in embeds.weights
    assert isinstance(embeds.graph.nodes[-2], Pool)


def test_a_config_alone_tells_the_shape(tmp_path: Path) -> None:
    shutil.copy(GOLDEN / "roberta" / "config.json", tmp_path)
    shape = read_shape(ModelConfig(path=str(tmp_path)))
    assert shape.max_position == 94  # 96 rows, of which the first two stand for no position
    assert shape.graph.pools


def test_roberta_has_fewer_positions_than_rows() -> None:
    assert load(GOLDEN / "roberta").max_position == 94
    assert load(GOLDEN / "xlm_roberta").max_position == 92
    assert load(GOLDEN / "bert").max_position == 96


@pytest.mark.parametrize(
    ("declared", "shorter"),
    [
        ({"is_matryoshka": True}, ()),
        ({"matryoshka_dimensions": [8, 16]}, (8, 16)),
        ({"is_matryoshka": False}, None),
        ({}, None),
    ],
)
def test_matryoshka_models_say_so(
    folder: Callable[[str], Path], declared: dict[str, Any], shorter: tuple[int, ...] | None
) -> None:
    path = folder("bert")
    change(path / "config.json", **declared)
    embedding = load(path).embedding
    assert embedding is not None
    assert embedding.shorter == shorter


@pytest.mark.parametrize(
    ("kinds", "reason"),
    [
        (["Transformer", "Pooling", "Dense"], "the module Dense is not built"),
        (["Transformer"], "names 0 Pooling modules"),
        (["Transformer", "Pooling", "Pooling"], "names 2 Pooling modules"),
        (["Transformer", "WeightedLayerPooling"], "the module WeightedLayerPooling is not built"),
    ],
)
def test_other_modules_are_refused(folder: Callable[[str], Path], kinds: list[str], reason: str) -> None:
    path = folder("bert")
    modules(path, *kinds)
    with pytest.raises(ModelLoadError, match=reason):
        load(path)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": False}, "asks for pooling_mode_max_tokens"),
        ({"pooling_mode_cls_token": True}, "asks for cls and mean"),
        ({"pooling_mode_mean_tokens": False}, "asks for nothing"),
        ({"pooling_mode": "max"}, "asks for max"),
    ],
)
def test_other_ways_of_pooling_are_refused(folder: Callable[[str], Path], values: dict[str, Any], reason: str) -> None:
    path = folder("bert")
    change(path / "1_Pooling" / "config.json", **values)
    with pytest.raises(ModelLoadError, match=reason):
        load(path)


@pytest.mark.parametrize("content", ["{}", "[1]", "not json", '[{"path": ""}]'])
def test_modules_that_are_none_are_refused(folder: Callable[[str], Path], content: str) -> None:
    path = folder("bert")
    (path / "modules.json").write_text(content)
    with pytest.raises(ModelLoadError, match="is not a list of modules"):
        load(path)


@pytest.mark.parametrize(
    ("case", "values", "reason"),
    [
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
        ("bert", {"is_decoder": True}, "is_decoder is true"),
        ("bert", {"hidden_act": "tanh"}, "hidden_act is 'tanh'; this build knows gelu"),
        ("bert", {"num_attention_heads": 5}, "hidden_size must be a multiple"),
        ("bert", {"model_type": "nomic_bert"}, "model_type is 'nomic_bert'; this build knows bert"),
        ("roberta", {"pad_token_id": 96}, "max_position_embeddings leaves no position from 97 on"),
        ("qwen3_embedding", {"is_causal": False}, "is_causal is false: this build has that in encoders only"),
        ("qwen3_embedding", {"use_bidirectional_attention": True}, "use_bidirectional_attention is true"),
    ],
)
def test_what_cannot_be_honoured_is_named(
    folder: Callable[[str], Path], case: str, values: dict[str, Any], reason: str
) -> None:
    path = folder(case)
    change(path / "config.json", **values)
    with pytest.raises(ModelLoadError, match=reason):
        load(path)


def test_a_mean_over_local_layers_is_refused() -> None:
    with pytest.raises(ModelLoadError, match="pooling mean of layers with a sliding window is not built; use last"):
        load(GOLDEN / "mistral_window", pooling="mean")
    assert load(GOLDEN / "mistral_window", pooling="last").embedding is not None


def test_a_graph_that_pools_has_no_head() -> None:
    values = json.loads((GOLDEN / "gemma2" / "config.json").read_text())
    plain = build_graph(Fields(values, "gemma2"))
    graph = build_graph(Fields({**values, "pooling": "last"}, "gemma2"))
    assert not plain.pools
    assert graph.pools
    assert not graph.whole
    assert len(plain.nodes) - len(graph.nodes) == 2  # the head and the cap of its logits
    assert graph.logits.width == values["hidden_size"]


def test_a_text_is_as_long_as_the_vectors_were_made_for(folder: Callable[[str], Path]) -> None:
    path = folder("bert")
    stated = path / "sentence_bert_config.json"
    stated.write_text('{"max_seq_length": 40, "do_lower_case": false}')
    assert load(path).max_position == 40
    assert load(path, max_model_len=64).max_position == 96  # whoever asks for more gets what there are positions for
    stated.write_text('{"max_seq_length": null}')
    assert load(path).max_position == 96
    stated.write_text('{"max_seq_length": "many"}')
    with pytest.raises(ModelLoadError, match=r"sentence_bert_config.json: max_seq_length must be a whole number"):
        load(path)


def test_a_config_alone_tells_that_length_too(tmp_path: Path) -> None:
    for name in ("config.json", "modules.json"):
        shutil.copy(GOLDEN / "bert" / name, tmp_path)
    shutil.copytree(GOLDEN / "bert" / "1_Pooling", tmp_path / "1_Pooling")
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 40}')
    assert read_shape(ModelConfig(path=str(tmp_path))).max_position == 40

"""GGUF models that are split over files: read as one, or refused for the part that is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.gguf_bytes import gguf_bytes, tiny_llama_metadata, tiny_llama_tensors
from tidemill.core.config import ModelConfig
from tidemill.core.errors import ModelLoadError
from tidemill.core.settings import engine_config
from tidemill.models.loading import load_model
from tidemill.models.loading.split import gguf_paths
from tidemill.models.memory_plan import plan_memory

ALL = list(tiny_llama_tensors().items())


def part(folder: Path, number: int) -> Path:
    return folder / f"tiny-{number:05d}-of-00003.gguf"


def write_parts(folder: Path, changes: Mapping[int, Mapping[str, Any]] | None = None) -> Path:
    """Three parts of 4, 4 and 3 tensors; ``changes`` to the metadata of a part, None removes a key."""
    cuts = (ALL[:4], ALL[4:8], ALL[8:])
    for number, tensors in enumerate(cuts, 1):
        metadata: dict[str, Any] = dict(tiny_llama_metadata()) if number == 1 else {}
        metadata |= {"split.no": number - 1, "split.count": 3, "split.tensors.count": len(ALL)}
        metadata |= (changes or {}).get(number, {})
        kept = {key: value for key, value in metadata.items() if value is not None}
        part(folder, number).write_bytes(gguf_bytes(kept, tensors))
    return folder


def load(path: Path) -> Any:
    return load_model(ModelConfig(path=str(path)))


def refusal(path: Path) -> str:
    with pytest.raises(ModelLoadError) as caught:
        load(path)
    assert "\n" not in caught.value.message
    return caught.value.message


@pytest.mark.parametrize("number", [1, 2, 3])
def test_any_part_opens_the_whole_model(tmp_path: Path, number: int) -> None:
    write_parts(tmp_path)
    whole = tmp_path / "whole.gguf"
    whole.write_bytes(gguf_bytes(tiny_llama_metadata(), tiny_llama_tensors()))
    split, joined = load(part(tmp_path, number)), load(whole)
    assert split.name == "tiny"
    assert (split.graph, split.text.gguf.tokens[7]) == (joined.graph, "<s>")
    assert len(split.weights) == 11
    for name, weight in joined.weights.items():
        assert np.array_equal(split.weights[name].data, weight.data)
    assert gguf_paths(part(tmp_path, number)) == tuple(part(tmp_path, n) for n in (1, 2, 3))


def test_the_memory_plan_counts_all_parts(tmp_path: Path) -> None:
    made = plan_memory(load(part(write_parts(tmp_path), 2)), engine_config("x", {"max_running": 1}), 2**30)
    assert made.weights == sum(len(tensor.data) for _, tensor in ALL)


@pytest.mark.parametrize(("missing", "given"), [(2, 1), (1, 3)])
def test_a_missing_part_is_named(tmp_path: Path, missing: int, given: int) -> None:
    write_parts(tmp_path)
    part(tmp_path, missing).unlink()
    assert refusal(part(tmp_path, given)) == (
        f"{part(tmp_path, missing)}: this part of the 3 of {part(tmp_path, given).name} is missing"
    )


def test_several_missing_parts_are_counted(tmp_path: Path) -> None:
    write_parts(tmp_path)
    part(tmp_path, 2).unlink()
    part(tmp_path, 3).unlink()
    assert f"{part(tmp_path, 2)}: this part and 1 more of the 3 of" in refusal(part(tmp_path, 1))


@pytest.mark.parametrize(
    ("number", "changes", "message"),
    [
        (2, {"split.count": 4}, "split.count is 4, but its name says 3"),
        (1, {"split.count": 2}, "split.count is 2, but its name says 3"),
        (3, {"split.no": 1}, "split.no is 1, but its name says 2"),
        (3, {"split.no": None}, "split.no is not there, but its name says 2"),
        (2, {"split.count": None}, "split.count is not there, but its name says 3"),
        (3, {"split.tensors.count": 12}, "split.tensors.count is 12, but the first part says 11"),
        (2, {"general.architecture": "qwen2"}, "general.architecture is 'qwen2', but 'llama' in the first part"),
        (2, {"split.no": "1"}, "split.no must be a whole number, not '1'"),
        (1, {"split.count": True}, "split.count must be a whole number, not True"),
    ],
)
def test_a_part_that_does_not_belong_is_named(
    tmp_path: Path, number: int, changes: dict[str, Any], message: str
) -> None:
    write_parts(tmp_path, {number: changes})
    for given in (1, 2, 3):
        assert refusal(part(tmp_path, given)) == f"{part(tmp_path, number)}: {message}"


def test_a_wrong_number_of_tensors_is_told(tmp_path: Path) -> None:
    write_parts(tmp_path, {number: {"split.tensors.count": 10} for number in (1, 2, 3)})
    assert refusal(part(tmp_path, 1)).endswith("split.tensors.count is 10, but the parts hold 11 tensors")


def test_a_tensor_in_two_parts_is_named(tmp_path: Path) -> None:
    write_parts(tmp_path)
    keys = {"split.no": 2, "split.count": 3, "split.tensors.count": 11}
    part(tmp_path, 3).write_bytes(gguf_bytes(keys, [ALL[0], *ALL[9:]]))
    message = refusal(part(tmp_path, 1))
    assert message.startswith(f"{part(tmp_path, 3)}: tensor token_embd.weight [8, 8] f32 is also in ")
    assert message.endswith(str(part(tmp_path, 1)))


def test_a_part_under_another_name_says_how_parts_are_called(tmp_path: Path) -> None:
    write_parts(tmp_path)
    other = part(tmp_path, 1).rename(tmp_path / "renamed.gguf")
    assert "is one of 3 parts, but is not named so; parts are called renamed-00001-of-00003.gguf" in refusal(other)


def test_a_whole_model_may_be_named_like_a_part(tmp_path: Path) -> None:
    path = tmp_path / "tiny-00001-of-00001.gguf"
    path.write_bytes(gguf_bytes(tiny_llama_metadata(), tiny_llama_tensors()))
    assert load(path).name == "tiny"

"""Files that are no files, that are endless, or that make much out of little: one line, in little time and memory."""

from __future__ import annotations

import json
import os
import resource
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.models.loading.test_hostile_folder import FILES, TOKENIZERS, written
from tests.support.gguf_bytes import gguf_bytes, tiny_llama_metadata, tiny_llama_tensors

NAMES = [*FILES, "chat_template.jinja", "model.safetensors"]
USE = """
import sys, pathlib
sys.path.insert(0, ".")
from tidemill.core.errors import TidemillError
from tests.models.loading.test_hostile_folder import use
for path in sys.argv[1:]:
    try:
        use(pathlib.Path(path))
        print("of use")
    except TidemillError as error:
        print(error.message)
"""
ROOT = Path(__file__).parents[3]
MEMORY = 1 << 30
"""Address space: numpy and the tokenizers library take a third of it."""


def said(*paths: Path) -> list[str]:
    """What comes of using models, one after the other, in a process with little memory and time."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (20, 20))

    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", USE, *map(str, paths)],
        cwd=ROOT, env=environment, preexec_fn=limit, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.splitlines()
    assert len(lines) == len(paths)
    return lines


def changed(folder: Path, name: str, files: dict[str, Any]) -> Path:
    """A folder of its own with some of its files changed."""
    (folder / name).mkdir()
    return written(folder / name, FILES | files)


def fifo(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def folder(path: Path) -> None:
    path.mkdir()


def loop(path: Path) -> None:
    path.symlink_to(path.name)


@pytest.mark.parametrize("make", [fifo, endless, folder, loop])
def test_what_is_no_file_is_refused_by_name(tmp_path: Path, make: Callable[[Path], None]) -> None:
    from tests.models.loading.test_hostile_folder import use
    from tidemill.core.errors import ModelLoadError

    for name in NAMES:
        (tmp_path / name).mkdir()
        whole = written(tmp_path / name, FILES)
        (whole / name).unlink(missing_ok=True)
        make(whole / name)
        begin = time.process_time()
        if make is loop and name not in ("config.json", "tokenizer.json", "model.safetensors"):
            use(whole)  # a link to itself is as good as no file, and these may be missing
            continue
        with pytest.raises(ModelLoadError) as error:
            use(whole)
        assert name in error.value.message or name == "config.json"
        assert time.process_time() - begin < 2


def test_a_sparse_file_of_a_terabyte_is_refused(tmp_path: Path) -> None:
    folders = [changed(tmp_path, name, {}) for name in FILES]
    for name, whole in zip(FILES, folders, strict=True):
        with (whole / name).open("wb") as file:
            file.truncate(1 << 40)
    for name, message in zip(FILES, said(*folders), strict=True):
        assert f"{name}: has more than 256 MiB" in message


def test_links_out_of_the_folder_are_followed_and_names_are_not(tmp_path: Path) -> None:
    """The hub's cache is made of links. An index that names a place outside is not."""
    linked = changed(tmp_path, "linked", {})
    (linked / "model.safetensors").rename(tmp_path / "blob")
    (linked / "model.safetensors").symlink_to(tmp_path / "blob")
    folders = [linked]
    tensors = FILES["model.safetensors.index.json"]["weight_map"]
    for shard in ("elsewhere/blob", str(tmp_path / "blob"), "../blob", "..", ".", "", "a\0b", "x" * 300):
        index = {"weight_map": dict.fromkeys(tensors, shard)}
        folders.append(changed(tmp_path, str(len(folders)), {"model.safetensors.index.json": index}))
    first, *others = said(*folders)
    assert first == "of use"
    for path, message in zip(folders[1:], others, strict=True):
        assert message.startswith(str(path))


REPLACE = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
BACKTRACKS = {"type": "Split", "pattern": {"Regex": "(e+)+$"}, "behavior": "Isolated", "invert": False}
HOSTILE_TOKENIZERS: dict[str, tuple[dict[str, Any], str]] = {
    "doubling": (
        {"normalizer": {"type": "Sequence", "normalizers": [REPLACE] * 60}},
        "Replace rules make a text over 64 times as long",
    ),
    "doubling decoder": (
        {"decoder": {"type": "Sequence", "decoders": [REPLACE] * 60}},
        "Replace rules make a text over 64 times as long",
    ),
    "text between characters": (
        {"normalizer": {"type": "Replace", "pattern": {"Regex": ""}, "content": "x" * 1000}},
        "Replace rules make a text over 64 times as long",
    ),
    "merges of themselves": (
        {"model": {"type": "BPE", "vocab": {"a": 0, "!": 1, "aa": 2}, "merges": ["a a", "aa a"]}},
        "tokenizer.json cannot be read",
    ),
    "a charsmap that is none": (
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA/////w=="}},
        "precompiled_charsmap is cut off",
    ),
    "nested rules": (
        {"normalizer": "NESTED"},
        "tokenizer.json: is not a tokenizer: maximum recursion depth exceeded",
    ),
}


def test_a_hostile_tokenizer_is_refused(tmp_path: Path) -> None:
    nested = '{"type": "Sequence", "normalizers": [' * 5000 + '{"type": "NFC"}' + "]}" * 5000
    folders = []
    for name, (changes, _) in HOSTILE_TOKENIZERS.items():
        folders.append(changed(tmp_path, name, {}))
        text = json.dumps(TOKENIZERS[0] | changes).replace('"NESTED"', nested)
        (folders[-1] / "tokenizer.json").write_text(text)
    for message, (_, expected) in zip(said(*folders), HOSTILE_TOKENIZERS.values(), strict=True):
        assert expected in message


def test_an_expression_that_backtracks_without_end_is_that_texts_end(tmp_path: Path) -> None:
    from tests.models.loading.test_hostile_folder import use
    from tidemill.core.errors import InvalidRequest
    from tidemill.models.loading.loader import load_text_source
    from tidemill.text.tokenizer import build_tokenizer

    whole = written(tmp_path, FILES)
    cut = {"type": "Sequence", "pretokenizers": [BACKTRACKS, TOKENIZERS[0]["pre_tokenizer"]]}
    (whole / "tokenizer.json").write_text(json.dumps(TOKENIZERS[0] | {"pre_tokenizer": cut}))
    use(whole)
    tokenizer = build_tokenizer(load_text_source(str(whole)))
    with pytest.raises(InvalidRequest, match=r"tokenizer cannot cut this text: .*retry-limit"):
        tokenizer.encode("e" * 40 + "!")
    assert tokenizer.encode("ee")


ABSURD = [
    {"num_hidden_layers": 2**31 - 1},
    {"num_hidden_layers": 10_000},
    {"num_attention_heads": 2**31 - 2, "head_dim": 2},
    {"head_dim": 2**31 - 2},
    {"vocab_size": 2**31 - 1, "hidden_size": 2**31 - 2, "intermediate_size": 2**31 - 1},
    {"model_type": "mixtral", "num_local_experts": 2**31 - 1, "num_experts_per_tok": 2},
]
ABSURD_GGUF = [
    {"llama.block_count": 2**31 - 1},
    {"llama.attention.key_length": 2**31 - 2},
    {"llama.attention.head_count": 2**31 - 2, "llama.attention.key_length": 2},
    {"llama.expert_count": 2**31 - 1, "llama.expert_used_count": 1},
]


def test_absurd_sizes_are_refused_before_anything_is_made_of_them(tmp_path: Path) -> None:
    paths = [
        changed(tmp_path, str(number), {"config.json": FILES["config.json"] | sizes})
        for number, sizes in enumerate(ABSURD)
    ]
    for number, sizes in enumerate(ABSURD_GGUF):
        paths.append(tmp_path / f"{number}.gguf")
        paths[-1].write_bytes(gguf_bytes(tiny_llama_metadata() | sizes, tiny_llama_tensors()))
    for path, message in zip(paths, said(*paths), strict=True):
        assert message.startswith(str(path))


def test_a_header_of_many_small_things_takes_little_memory(tmp_path: Path) -> None:
    whole = written(tmp_path, FILES)
    lists = b'{"a": [' + b"[]," * (8 * 2**20) + b"[]]}"
    (whole / "model.safetensors").write_bytes(struct.pack("<Q", len(lists)) + lists)
    assert "model.safetensors: tensor a: dtype is None" in said(whole)[0]

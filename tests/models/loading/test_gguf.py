"""The GGUF reader on good files, on every kind of bad one, and on random damage."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.gguf_bytes import ARRAY, STRING, Tensor, array, gguf_bytes, string
from tests.support.gguf_bytes import tiny_llama_metadata as metadata
from tests.support.gguf_bytes import tiny_llama_tensors as tensors
from tidemill.core.config import ModelConfig
from tidemill.core.errors import ModelLoadError
from tidemill.models.loading import load_model
from tidemill.models.loading.gguf import GgufFile


def saved(folder: Path, content: bytes) -> Path:
    path = folder / "model.gguf"
    path.write_bytes(content)
    return path


def refusal(folder: Path, content: bytes) -> str:
    path = saved(folder, content)
    with pytest.raises(ModelLoadError) as error:
        GgufFile(path)
    message = error.value.message
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


def test_metadata_and_tensors_come_back(tmp_path: Path) -> None:
    pairs = {"a": 7, "b": -7, "c": 0.5, "d": True, "e": "text é", "f": ["x", "", "ž"], "g": [3, 2, 1]}
    blocks = bytes(range(18)) * 4
    file = GgufFile(
        saved(
            tmp_path,
            gguf_bytes(
                pairs,
                {
                    "v": Tensor(shape=(3,), data=struct.pack("<3f", 1, 2, 3)),
                    "m": Tensor(shape=(2, 64), data=blocks, kind=2),
                },
            ),
        )
    )
    plain = {key: value for key, value in file.metadata.items() if key not in {"f", "g"}}
    assert plain == {"a": 7, "b": -7, "c": 0.5, "d": True, "e": "text é"}
    assert list(file.metadata["f"]) == ["x", "", "ž"]
    assert file.metadata["f"][-1] == "ž"
    assert file.metadata["f"][0:2] == ("x", "")
    assert file.metadata["g"].tolist() == [3, 2, 1]
    assert file.tensors["v"].data.view("<f4").tolist() == [1, 2, 3]
    matrix = file.tensors["m"]
    assert (matrix.shape, matrix.type_name, matrix.data.tobytes()) == ((2, 64), "q4_0", blocks)


@pytest.mark.parametrize("version", [2, 3])
def test_versions_two_and_three_are_read(tmp_path: Path, version: int) -> None:
    assert GgufFile(saved(tmp_path, gguf_bytes({"a": 1}, version=version))).metadata == {"a": 1}


@pytest.mark.parametrize("key", ["k" * length for length in (1, 17, 33, 49)])
def test_another_alignment_moves_the_data(tmp_path: Path, key: str) -> None:
    content = gguf_bytes(
        {"general.alignment": 64, key: 1},
        {"a": Tensor(shape=(1,), data=b"\0\0\0\0"), "b": Tensor(shape=(1,), data=struct.pack("<f", 5))},
        alignment=64,
    )
    assert GgufFile(saved(tmp_path, content)).tensors["b"].data.view("<f4").tolist() == [5]


def test_two_tensors_that_share_bytes_are_refused(tmp_path: Path) -> None:
    """As llama.cpp refuses them: an offset is damaged, and the model would answer nonsense."""
    for shape, first in (((8,), b""), ((16,), bytes(32))):
        tensors = [("a", Tensor(shape=shape, data=first)), ("b", Tensor(shape=(8,), data=bytes(range(32))))]
        assert refusal(tmp_path, gguf_bytes({}, tensors)) == "tensor b [8] f32 overlaps tensor a: the file is damaged"


def test_bytes_between_tensors_that_nobody_names_do_no_harm(tmp_path: Path) -> None:
    tensors = [("a", Tensor(shape=(1,), data=bytes(320))), ("b", Tensor(shape=(8,), data=bytes(range(32))))]
    file = GgufFile(saved(tmp_path, gguf_bytes({}, tensors)))
    assert file.tensors["b"].data.tobytes() == bytes(range(32))


HUGE = 2**63 + 5
BAD_FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "another kind of file": (b"PK\x03\x04" + bytes(60), "magic is not GGUF"),
    "three bytes": (b"GGU", "magic is not GGUF"),
    "only a magic": (b"GGUF", "version is cut off"),
    "version 1": (gguf_bytes({}, version=1), "version is 1"),
    "version 4": (gguf_bytes({}, version=4), "version is 4"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "version is big-endian"),
    "counts missing": (gguf_bytes({})[:20], "metadata count is cut off"),
    "more tensors than bytes": (b"GGUF" + struct.pack("<IQQ", 3, HUGE, 0), f"tensor count is {HUGE}"),
    "more metadata than bytes": (b"GGUF" + struct.pack("<IQQ", 3, 0, HUGE), f"metadata count is {HUGE}"),
    "key longer than the file": (
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", HUGE) + bytes(40),
        f"length of metadata key 0 is {HUGE}",
    ),
    "key that is not text": (gguf_bytes({})[:16] + struct.pack("<Q", 1) + string(b"\xff") + bytes(40), "not UTF-8"),
    "key twice": (gguf_bytes([("a", 1), ("a", 2)]), "metadata key 'a' is there twice"),
    "type that is unknown": (
        gguf_bytes({})[:16] + struct.pack("<Q", 1) + string("a") + struct.pack("<I", 77) + bytes(40),
        "type of a is 77",
    ),
    "array of unknown type": (gguf_bytes({"a": array(77, 1, bytes(8))}), "element type of a is 77"),
    "array longer than the file": (gguf_bytes({"a": array(4, HUGE, b"")}), f"length of a is {HUGE}"),
    "strings more than bytes": (gguf_bytes({"a": array(STRING, HUGE, b"")}), f"length of a is {HUGE}"),
    "string past the end": (
        gguf_bytes({"a": array(STRING, 2, string("x") + struct.pack("<Q", 2**40))}),
        "a is cut off in string 1 of 2",
    ),
    "string length that overflows": (
        gguf_bytes({"a": array(STRING, 2, struct.pack("<Q", 2**64 - 1) + bytes(40))}),
        "a is cut off in string 0 of 2",
    ),
    "arrays in arrays in arrays": (gguf_bytes({"a": array(ARRAY, 1, b"") * 6}), "nests arrays more than 4 deep"),
    "more arrays in arrays than any model needs": (
        gguf_bytes({"a": array(ARRAY, 5000, array(4, 0, b"") * 5000)}),
        "a nests arrays: the file has more than 4096",
    ),
    "more tensors than any model needs": (
        b"GGUF" + struct.pack("<IQQ", 3, 300_000, 0) + bytes(24 * 300_000),
        "tensor count is 300000, more than the 262144 that any model needs",
    ),
    "more metadata than any model needs": (
        b"GGUF" + struct.pack("<IQQ", 3, 0, 70_000) + bytes(13 * 70_000),
        "metadata count is 70000, more than the 65536 that any model needs",
    ),
    "alignment 0": (gguf_bytes({"general.alignment": 0}), "general.alignment must be a power of two"),
    "alignment 48": (gguf_bytes({"general.alignment": 48}), "not 48"),
    "alignment that is text": (gguf_bytes({"general.alignment": "32"}), "not '32'"),
    "tensor twice": (
        gguf_bytes({}, [("t", Tensor(shape=(1,), data=bytes(4))), ("t", Tensor(shape=(1,), data=bytes(4)))]),
        "tensor t is there twice",
    ),
    "no dimensions": (gguf_bytes({}, {"t": Tensor(shape=(), data=b"")}), "dimensions of tensor t is 0"),
    "five dimensions": (gguf_bytes({}, {"t": Tensor(shape=(1,) * 5, data=bytes(4))}), "dimensions of tensor t is 5"),
    "a size of zero": (gguf_bytes({}, {"t": Tensor(shape=(0, 4), data=b"")}), "has a size of 0"),
    "a size below zero": (gguf_bytes({}, {"t": Tensor(shape=(2**64 - 1,), data=bytes(4))}), "the file ends at"),
    "sizes whose product overflows": (
        gguf_bytes({}, {"t": Tensor(shape=(2**32, 2**32), data=bytes(64))}),
        "tensor t [4294967296, 4294967296] takes bytes",
    ),
    "rows that are not whole blocks": (
        gguf_bytes({}, {"t": Tensor(shape=(2, 33), data=bytes(99), kind=2)}),
        "tensor t [2, 33] q4_0 has rows that are not blocks of 32",
    ),
    "data cut off": (gguf_bytes({}, {"t": Tensor(shape=(64,), data=bytes(256))})[:-1], "is it cut off?"),
    "offset off the alignment": (
        gguf_bytes(
            {}, [("a", Tensor(shape=(1,), data=bytes(4))), ("t", Tensor(shape=(1,), data=bytes(4)))], alignment=4
        ),
        "offset of tensor t is 4, not a multiple of the alignment 32",
    ),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_refused_with_its_field(tmp_path: Path, name: str) -> None:
    content, reason = BAD_FILES[name]
    assert reason in refusal(tmp_path, content)


def test_a_folder_or_nothing_is_refused(tmp_path: Path) -> None:
    for path, reason in ((tmp_path, "is not a file"), (tmp_path / "no.gguf", "no such file")):
        with pytest.raises(ModelLoadError, match=reason):
            GgufFile(path)


def test_text_that_is_not_utf8_is_refused_when_it_is_read(tmp_path: Path) -> None:
    content = gguf_bytes({"words": array(STRING, 3, string("a") + string(b"\xc3") + string("c"))})
    words = GgufFile(saved(tmp_path, content)).metadata["words"]
    assert words[2] == "c"
    for read in (lambda: words[1], lambda: list(words)):
        with pytest.raises(ModelLoadError, match="words holds text that is not UTF-8"):
            read()


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = gguf_bytes(metadata(), tensors())
    for length in (*range(0, len(whole), 11), len(whole) - 1):
        path = saved(tmp_path, whole[:length])
        with pytest.raises(ModelLoadError):
            load_model(ModelConfig(path=str(path)))


SMALL = gguf_bytes(metadata(), tensors())
HEADER = SMALL.index(bytes(256))


def outcome(path: Path) -> str | None:
    """Load everything; the refusal's message, if there is one."""
    try:
        model = load_model(ModelConfig(path=str(path)))
        assert sum(model.weights[name].data.size for name in model.weights) < len(tensors()) * len(SMALL)
        list(model.text.gguf.tokens if model.text.gguf else ())
    except ModelLoadError as error:
        return error.message
    return None


@settings(max_examples=200, deadline=None)
@given(
    edits=st.lists(st.tuples(st.integers(0, HEADER), st.binary(min_size=1, max_size=8)), min_size=1, max_size=4),
    cut=st.one_of(st.none(), st.integers(0, len(SMALL))),
)
def test_random_damage_never_does_worse_than_a_refusal(
    tmp_path_factory: pytest.TempPathFactory, edits: list[tuple[int, bytes]], cut: int | None
) -> None:
    content = bytearray(SMALL[:cut])
    for at, replacement in edits:
        content[at : at + len(replacement)] = replacement
    path = saved(tmp_path_factory.getbasetemp(), bytes(content))
    begin = time.process_time()
    message = outcome(path)
    assert message is None or str(path) in message
    assert time.process_time() - begin < 1.0


def test_a_vocabulary_of_262144_tokens_takes_well_under_a_second(tmp_path: Path) -> None:
    count = 262_144
    tokens = b"".join(string(f"token{i}") for i in range(count))
    merges = b"".join(string(f"tok en{i}") for i in range(count))
    changes = {
        "tokenizer.ggml.tokens": array(STRING, count, tokens),
        "tokenizer.ggml.merges": array(STRING, count, merges),
        "tokenizer.ggml.scores": array(6, count, np.zeros(count, "<f4").tobytes()),
        "tokenizer.ggml.token_type": array(5, count, np.ones(count, "<i4").tobytes()),
    }
    path = saved(tmp_path, gguf_bytes(metadata() | changes))
    begin = time.process_time()
    file = GgufFile(path)
    words = list(file.metadata["tokenizer.ggml.tokens"])
    assert time.process_time() - begin < 0.7
    assert (len(words), words[-1], file.metadata["tokenizer.ggml.merges"][7]) == (count, "token262143", "tok en7")

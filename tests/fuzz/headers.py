"""Coverage-guided damage to the headers of model files; needs atheris (``pip install atheris``).

    python -m tests.fuzz.headers gguf --seconds 180
    python -m tests.fuzz.headers safetensors --seconds 180

Whatever the bytes are, the reader gives tensors or one line of ModelLoadError. Any other exception ends the run, and
the bytes that raised it are kept in a file ``crash-...``; so do too much memory and too much time (the bounds are
below). One of the last lines says how many inputs were tried.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["tidemill"]):
    from tidemill.core.errors import ModelLoadError
    from tidemill.models.loading.gguf import GgufFile
    from tidemill.models.loading.gguf_text import gguf_text_source
    from tidemill.models.loading.safetensors import read_shard

from tests.support.gguf_bytes import gguf_bytes, tiny_llama_metadata, tiny_llama_tensors

MOST_MEMORY_MB = 2048
MOST_BYTES = 16_384
SECONDS_OF_ONE = 5


def read_gguf(path: Path) -> None:
    """Header, metadata, tensor records, and the text rules in them."""
    gguf_text_source(GgufFile(path))


def read_safetensors(path: Path) -> None:
    """Header and tensor records."""
    read_shard(path)


WORDS = {
    "gguf": [
        "general.architecture",
        "general.alignment",
        "tokenizer.ggml.tokens",
        "tokenizer.ggml.token_type",
        "llama",
    ],
    "safetensors": [
        '"dtype"',
        '"shape"',
        '"data_offsets"',
        '"F16"',
        '"F8_E4M3"',
        '"I64"',
        "[0, 0]",
        "null",
        "1e9",
        "{}",
    ],
}
"""What mutations alone would seldom write."""
READERS: dict[str, Callable[[Path], None]] = {"gguf": read_gguf, "safetensors": read_safetensors}


def seeds(kind: str) -> list[bytes]:
    """Whole files to begin with."""
    if kind == "gguf":
        bare = gguf_bytes({"general.architecture": "llama"}, {})
        return [gguf_bytes(tiny_llama_metadata(), tiny_llama_tensors()), bare]
    entries = {
        "a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
        "b": {"dtype": "BF16", "shape": [3], "data_offsets": [16, 22]},
        "__metadata__": {"format": "pt"},
    }
    header = json.dumps(entries).encode()
    return [len(header).to_bytes(8, "little") + header + bytes(22), (2).to_bytes(8, "little") + b"{}"]


def _with_length(data: bytes) -> bytes:
    """Mostly the length of a header is made right, so that damage reaches what is behind it."""
    end = data.rfind(b"}") + 1
    return (end - 8).to_bytes(8, "little") + data[8:] if end > 8 and data[7] != 1 else data


def fuzz(kind: str, seconds: int, folder: Path) -> None:
    """Does not return: atheris ends the process."""
    read, path = READERS[kind], folder / f"x.{kind}"
    corpus = folder / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(seeds(kind)):
        (corpus / str(number)).write_bytes(seed)

    words = folder / "words"
    words.write_text("".join(f"{json.dumps(word)}\n" for word in WORDS[kind]))

    def one(data: bytes) -> None:
        path.write_bytes(_with_length(data) if kind == "safetensors" else data)
        try:
            read(path)
        except ModelLoadError as error:
            if "\n" in error.message:
                raise AssertionError(f"more than one line: {error.message!r}") from error

    limits = [f"-max_total_time={seconds}", f"-rss_limit_mb={MOST_MEMORY_MB}", f"-max_len={MOST_BYTES}"]
    limits += [
        f"-timeout={SECONDS_OF_ONE}",
        "-print_final_stats=1",
        f"-dict={words}",
        f"-artifact_prefix={Path.cwd()}/",
    ]
    atheris.Setup([sys.argv[0], str(corpus), *limits], one)
    atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser(description="Damage the headers of model files, guided by coverage.")
    parser.add_argument("kind", choices=sorted(READERS))
    parser.add_argument("--seconds", type=int, default=180)
    parser.add_argument("--folder", type=Path, help="where the inputs go; without it a new one, removed at the end")
    chosen = parser.parse_args()
    if chosen.folder is not None:
        fuzz(chosen.kind, chosen.seconds, chosen.folder)
    with tempfile.TemporaryDirectory(prefix="tidemill-fuzz-") as folder:  # atheris ends its process, and no more is run
        again = [sys.executable, "-m", "tests.fuzz.headers", *sys.argv[1:], "--folder", folder]
        sys.exit(subprocess.run(again, check=False).returncode)


if __name__ == "__main__":
    main()

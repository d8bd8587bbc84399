"""Loading a GGUF file's weights through the packed cache, as the engine does."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

from tests.support.gguf_bytes import Tensor, gguf_bytes, tiny_llama_metadata, tiny_llama_tensors
from tidemill.core.config import ExecutorConfig, ModelConfig
from tidemill.executors.native.executor import NativeExecutor
from tidemill.graph.passes.fuse import fuse
from tidemill.models.loading import load_model

__all__ = ["entries_in", "load", "tensors_with", "write_model"]


def tensors_with(value: float) -> dict[str, Tensor]:
    """The tiny Llama's tensors, with a value in every place of its first gate."""
    tensors = tiny_llama_tensors()
    shape = tensors["blk.0.ffn_gate.weight"].shape
    count = shape[0] * shape[1]
    return tensors | {
        "blk.0.ffn_gate.weight": Tensor(shape=shape, data=struct.pack(f"<{count}f", *[value] * count)),
    }


def write_model(path: Path, value: float = 1.0, tensors: Mapping[str, Tensor] | None = None) -> Path:
    """A tiny Llama as a GGUF file; files of two values have the same size."""
    path.write_bytes(gguf_bytes(tiny_llama_metadata(), tensors or tensors_with(value)))
    return path


def load(path: Path, cache: Path, **settings: object) -> tuple[bool, bytes]:
    """(whether the packed weights came from the cache, their bytes). The executor is closed again."""
    model = load_model(ModelConfig(path=str(path)))
    config = ExecutorConfig(threads=2, cache_dir=str(cache), **settings)  # type: ignore[arg-type]
    executor = NativeExecutor(fuse(model.graph), model.weights, config)
    try:
        machine = executor._machine
        packed = b"".join(machine.packed(item.index, item.count).tobytes() for item in executor.packed_items)
        return executor.cached_bytes > 0, packed
    finally:
        executor.close()


def entries_in(cache: Path) -> list[Path]:
    """The files of packed weights."""
    return sorted((cache / "packed").glob("*.packed"))

"""LoRA adapters in GGUF files: blk.3.attn_q.weight.lora_a [rank, inputs], .lora_b [outputs, rank].

    general.type adapter | adapter.type lora | general.architecture | adapter.lora.alpha; scale = alpha / rank

Rows of B are in the order that the architecture's files have the weight's rows in.

Source: llama.cpp's converter of adapters, and its loader.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tidemill.core.errors import ModelLoadError
from tidemill.graph.graph import Attention, Graph
from tidemill.models.fields import Fields
from tidemill.models.loading import gguf_config
from tidemill.models.loading.gguf import GgufFile
from tidemill.models.loading.gguf_dialects import DIALECTS
from tidemill.models.loading.lora_part import LoraPart
from tidemill.models.loading.stored import StoredTensor

__all__ = ["read_gguf_adapter"]

_A, _B = ".lora_a", ".lora_b"


def read_gguf_adapter(path: Path, graph: Graph) -> tuple[dict[str, LoraPart], str]:
    """The parts by module, in Hugging Face's names, and the name of the base model. Raises ModelLoadError naming the
    file and the field or tensor at fault."""
    file = GgufFile(path)
    metadata = Fields(file.metadata, file.where)
    for key, expected in (("general.type", "adapter"), ("adapter.type", "lora")):
        if (found := metadata.text(key)) != expected:
            raise metadata.error(key, f"is {found!r}, not {expected!r}: this is no LoRA adapter")
    architecture = metadata.text("general.architecture")
    if architecture not in DIALECTS:
        raise metadata.error("general.architecture", f"is {architecture!r}; this build knows {', '.join(DIALECTS)}")
    alpha = metadata.number("adapter.lora.alpha")
    halves: dict[str, dict[str, StoredTensor]] = {suffix: {} for suffix in (_A, _B)}
    for name, tensor in file.tensors.items():
        suffix = name[-len(_A) :]
        if suffix not in halves:
            raise ModelLoadError(f"{tensor} is neither a lora_a nor a lora_b")
        halves[suffix][name.removesuffix(suffix)] = tensor
    dialect, fields = DIALECTS[architecture], _heads(graph, file.where)
    all_a = gguf_config.tensors(file.with_tensors(halves[_A]), fields, replace(dialect, paired=False))
    all_b = gguf_config.tensors(file.with_tensors(halves[_B]), fields, dialect)
    if lone := all_a.keys() ^ all_b.keys():
        raise ModelLoadError(f"{file.where}: {min(lone)} has only one of lora_a and lora_b")
    parts = {}
    for name, a in all_a.items():
        module = name.removesuffix(".weight")
        if (b := all_b[name]).heads and b.shape[0] % (2 * b.heads):
            raise ModelLoadError(f"{b} has rows that are no pairs of {b.heads} heads")
        parts[module] = LoraPart.of(a, b, alpha / a.shape[0])
    return parts, metadata.text("general.base_model.0.name", "")


def _heads(graph: Graph, where: str) -> Fields:
    for node in graph.nodes:
        if isinstance(node, Attention):
            return Fields({"num_attention_heads": node.heads, "num_key_value_heads": node.kv_heads}, where)
    raise ModelLoadError(f"{where}: the model has no attention layers for an adapter to change")

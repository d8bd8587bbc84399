"""LoRA adapters as files: a PEFT folder (adapter_config.json, adapter_model.safetensors), or a GGUF file.

    base_model.model.<module>.lora_A.weight   [rank, inputs]
    base_model.model.<module>.lora_B.weight   [outputs, rank]

<module> is a linear layer by the name that transformers gives it; where the graph has its rows as several weights, B is
cut by rows and A is each part's. An adapter is used whole or not at all: a tensor that has no use here is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tidemill.core.errors import ModelLoadError
from tidemill.graph.formats import dequantize
from tidemill.graph.lora import Adapter, LowRankDelta, adapter_targets
from tidemill.models.loading.gguf import GgufFile
from tidemill.models.loading.gguf_adapter import read_gguf_adapter
from tidemill.models.loading.lora_part import LoraPart
from tidemill.models.loading.peft_config import PeftConfig
from tidemill.models.loading.safetensors import read_shard
from tidemill.models.loading.stored import StoredTensor
from tidemill.models.model import Model

__all__ = ["LoadedAdapter", "load_adapter", "other_base", "stored_bytes"]

_CONFIG, _TENSORS, _PICKLED = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
_NAME = re.compile(r"base_model\.model\.(.+)\.lora_([AB])(?:\.default)?\.weight")
_BASE = re.compile(r"base_model\.model\.(.+)\.base_layer\.weight")
"""PEFT saves the base model's own weight beside the A and B of a head."""
_MERGED = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
}
"""Of Phi-3, whose rows the graph has as weights of their own."""
_RENAMED = ("block_sparse_moe.gate", "block_sparse_moe.router.layer", "mlp.router")
"""What transformers calls ``mlp.gate`` in some mixtures."""
_INNER = re.compile(r"language_model\.(?=model\.|lm_head)|(?<=model\.)language_model\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedAdapter:
    """An adapter that fits a model."""

    adapter: Adapter
    base: str
    """The model it was trained on, as it says; empty: it does not."""


def load_adapter(path: Path, model: Model, *, max_rank: int) -> LoadedAdapter:
    """Read an adapter for a model. Raises ModelLoadError naming the file and the field or tensor that is missing,
    damaged, of another model or not something this build knows."""
    parts, base = read_gguf_adapter(path, model.graph) if _is_file(path) else _read_peft(path, model)
    if not parts:
        raise ModelLoadError(f"{path}: has no tensors")
    deltas: dict[str, LowRankDelta] = {}
    for module, part in parts.items():
        if part.rank > max_rank:
            raise ModelLoadError(f"{part.a}: its rank is {part.rank}; max_lora_rank allows {max_rank}")
        for name, delta in _deltas(module, part, model).items():
            if name in deltas:
                raise ModelLoadError(f"{part.a}: another tensor changes {name} as well")
            deltas[name] = delta
    return LoadedAdapter(adapter=Adapter(deltas=deltas), base=base)


def stored_bytes(path: Path) -> int:
    """What an adapter takes once it is loaded, in float32, from the headers of its files. Raises ModelLoadError."""
    tensors = GgufFile(path).tensors if _is_file(path) else read_shard(path / _TENSORS)
    return sum(4 * math.prod(tensor.shape) for tensor in tensors.values())


def _is_file(path: Path) -> bool:
    """Whether an adapter is a GGUF file, not a folder. Raises ModelLoadError if it is neither."""
    try:
        if path.is_file() or path.is_dir():
            return path.is_file()
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path}: cannot be looked at: {error}") from error
    raise ModelLoadError(f"{path}: there is no such folder; an adapter is one with {_CONFIG} and {_TENSORS}")


def other_base(base: str, *names: str) -> bool:
    """Whether an adapter's base model, by its name, is none of these: neither's last part is a part of the other's."""
    said = _plain(base)
    return bool(said) and not any(said in name or name in said for name in map(_plain, names) if name)


def _plain(name: str) -> str:
    last = name.rstrip("/").rpartition("/")[2].lower().removesuffix(".gguf")
    return "".join(filter(str.isalnum, last))


def _read_peft(folder: Path, model: Model) -> tuple[dict[str, LoraPart], str]:
    config = PeftConfig.read(folder / _CONFIG)
    file = folder / _TENSORS
    if not file.exists() and (folder / _PICKLED).exists():
        raise ModelLoadError(f"{folder / _PICKLED}: pickled files are not read; save the adapter as {_TENSORS}")
    halves: dict[str, dict[str, StoredTensor]] = {}
    for name, tensor in read_shard(file).items():
        if copied := _BASE.fullmatch(name):
            _check_copy(tensor, copied[1], model)
            continue
        match = _NAME.fullmatch(name)
        if match is None:
            raise ModelLoadError(f"{tensor} is not the A or B of a linear layer: not something this build knows")
        if not config.changes(match[1]):
            raise ModelLoadError(f"{tensor} is for a module that {config.where} does not name")
        if halves.setdefault(match[1], {}).setdefault(match[2], tensor) is not tensor:
            raise ModelLoadError(f"{tensor} is there twice")
    parts = {}
    for module, found in halves.items():
        one = next(iter(found.values()))
        if len(found) < 2:
            raise ModelLoadError(f"{one.where}: {module} has its lora_{'B' if 'A' in found else 'A'} missing")
        part = LoraPart.of(found["A"], found["B"], config.scale_of(module))
        if part.rank != config.rank_of(module):
            raise ModelLoadError(f"{part.a}: its rank is {part.rank}, and {config.where} says {config.rank_of(module)}")
        parts[module] = part
    _check_complete(config, parts, model)
    return parts, config.base


def _check_copy(tensor: StoredTensor, module: str, model: Model) -> None:
    """What an adapter holds of its base model is the model's own. Of a model that is quantised only the shape can be
    compared."""
    weights = _weights_of(module, model)
    name = model.graph.aliases.get(weights[0], weights[0]) if len(weights) == 1 else None
    if name is None or tensor.shape != model.graph.spec(name).shape:
        raise ModelLoadError(f"{tensor} is no weight of {model.name}")
    own = model.weights[name]
    if own.format.block_values == 1 and not np.array_equal(dequantize(own), _values(tensor)):
        raise ModelLoadError(f"{tensor} has other values than {model.name}: the adapter is for another model")


def _check_complete(config: PeftConfig, parts: Mapping[str, LoraPart], model: Model) -> None:
    """What a list of modules names has its tensors."""
    if config.targets is None:
        return
    changed = {name for module in parts for name in _weights_of(module, model)}
    for name in adapter_targets(model.graph):
        module = name.removesuffix(".weight")
        if name not in changed and config.changes(module):
            raise ModelLoadError(f"{config.where}: target_modules names {module}, and there is no tensor for it")


def _weights_of(module: str, model: Model) -> tuple[str, ...]:
    """The weights of the graph that a module of transformers stands for; none: it is not a linear layer here."""
    targets = adapter_targets(model.graph)
    module = _INNER.sub("", module)
    at, _, last = module.rpartition(".layers.")
    layer, _, inner = last.partition(".")
    names = _MERGED.get(inner, (inner,)) if model.architecture == "phi3" else (inner,)
    if inner in _RENAMED:
        names = ("mlp.gate",)
    if not at:
        return (f"{module}.weight",) if f"{module}.weight" in targets else ()
    weights = tuple(f"{at}.layers.{layer}.{name}.weight" for name in names)
    return weights if all(weight in targets for weight in weights) else ()


def _deltas(module: str, part: LoraPart, model: Model) -> dict[str, LowRankDelta]:
    weights = _weights_of(module, model)
    if not weights:
        raise ModelLoadError(
            f"{part.a} changes {module}, which is no linear layer of {model.name} that adapters can change"
        )
    shapes = [model.graph.spec(weight).shape for weight in weights]
    rows, columns = sum(shape[0] for shape in shapes), shapes[0][1]
    if part.a.shape[1] != columns or part.b.shape[0] != rows:
        raise ModelLoadError(
            f"{part.a} and {part.b.name} {list(part.b.shape)} are for another model: {module} of {model.name} is "
            f"[{rows}, {columns}]"
        )
    a = _values(part.a)
    halves = part.b.split_rows([shape[0] for shape in shapes]) if len(weights) > 1 else (part.b,)
    return {
        weight: LowRankDelta(a=a, b=_values(b), scale=part.scale) for weight, b in zip(weights, halves, strict=True)
    }


def _values(tensor: StoredTensor) -> npt.NDArray[np.float32]:
    """A matrix in float32, in memory of its own. Raises ModelLoadError for a value that is no number."""
    values = np.array(dequantize(tensor.weight(tensor.name)), dtype=np.float32)
    if not np.isfinite(values).all():
        raise ModelLoadError(f"{tensor} holds a value that is not finite")
    return values

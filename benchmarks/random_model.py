"""Random models of any size, in the formats of files: to measure loading, not answers.

    python benchmarks/random_model.py /tmp/one.gguf --format q4_0 --bytes 1000000000
    python benchmarks/random_model.py /tmp/qwen.gguf --shape qwen2.5-1.5b --format q4_k_m
    python benchmarks/random_model.py /tmp/sharded --format bf16 --bytes 200000000 --shards 3      (a folder)

A Llama of seeded random weights with finite scales; its answers mean nothing. ``--head`` gives it an output head of its
own, otherwise head and embedding are one tensor.
"""

from __future__ import annotations

import argparse
import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tidemill.graph.formats import WeightFormat

_KINDS = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 8, "q4_k": 12, "q6_k": 14, "bf16": 30}
"""Numbers of the formats in GGUF files."""
_FILE_TYPES = {
    "f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 7, "q4_k": 14, "q4_k_m": 15, "q6_k": 18, "bf16": 32,
}  # fmt: skip
"""Numbers of whole files of mostly such a format: some readers ask for them."""
_SCALES = {"q4_0": [0], "q4_1": [0, 2], "q8_0": [0], "q4_k": [0, 2], "q6_k": [208]}
"""Bytes of a block at which its half-precision scales begin."""
_FINITE = {"f16": 0xAFFF, "bf16": 0xBDFF}
"""Bits that a random 16-bit number keeps: what is left is below 1/8."""
SHAPES = {
    "qwen2.5-1.5b": {"layers": 28, "width": 1536, "inner": 8960, "heads": 12, "kv_heads": 2, "vocab": 151936},
}
"""Sizes of known models, by name."""
_PIECE = 64 * 2**20
_SEED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomModel:
    """Sizes of the model; ``layers`` follows from the bytes that are asked for."""

    format: WeightFormat
    layers: int
    width: int
    inner: int
    heads: int
    kv_heads: int
    vocab: int
    head: bool
    mixed: bool = False
    """As files called Q4_K_M: q6_k for the embedding, and for V and the down projection of half of the layers."""

    @classmethod
    def of_shape(cls, name: str, shape: str) -> RandomModel:
        """A model with the sizes of one that people know; its biases, if it has any, are left out."""
        mixed = name == "q4_k_m"
        return cls(format=WeightFormat("q4_k" if mixed else name), head=False, mixed=mixed, **SHAPES[shape])

    def format_of(self, name: str) -> WeightFormat:
        """The format of a matrix by its name in GGUF files."""
        if not self.mixed:
            return self.format
        kind, _, rest = name.partition(".")
        if kind != "blk":
            return WeightFormat.Q6_K
        layer, _, module = rest.partition(".")
        eighth, at = self.layers // 8, int(layer)
        finer = at < eighth or at >= 7 * self.layers // 8 or (at - eighth) % 3 == 2
        return WeightFormat.Q6_K if finer and module in {"attn_v", "ffn_down"} else self.format

    @classmethod
    def of_bytes(cls, name: str, size: int, *, head: bool = False) -> RandomModel:
        """A model whose matrices take about this many bytes."""
        wide = size >= 5 * 10**8
        sizes = {"width": 2048, "inner": 5632, "heads": 32, "kv_heads": 8, "vocab": 32000}
        small = {"width": 768, "inner": 2048, "heads": 12, "kv_heads": 4, "vocab": 16000}
        one = cls(format=WeightFormat(name), layers=1, head=head, **(sizes if wide else small))
        of_layer = sum(one.format.row_bytes(k) * n for n, k in one.layer_shapes().values())
        of_tables = one.format.row_bytes(one.width) * one.vocab * (2 if head else 1)
        layers = max(1, round((size - of_tables) / of_layer))
        return cls(format=WeightFormat(name), layers=layers, head=head, **(sizes if wide else small))

    def layer_shapes(self) -> dict[str, tuple[int, int]]:
        """The matrices of a layer by their names in GGUF files: (outputs, inputs)."""
        keys = self.width // self.heads * self.kv_heads
        return {
            "attn_q": (self.width, self.width),
            "attn_k": (keys, self.width),
            "attn_v": (keys, self.width),
            "attn_output": (self.width, self.width),
            "ffn_gate": (self.inner, self.width),
            "ffn_up": (self.inner, self.width),
            "ffn_down": (self.width, self.inner),
        }

    def shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Every tensor by its name in GGUF files."""
        yield "token_embd", (self.vocab, self.width)
        for layer in range(self.layers):
            yield f"blk.{layer}.attn_norm", (self.width,)
            yield f"blk.{layer}.ffn_norm", (self.width,)
            for name, shape in self.layer_shapes().items():
                yield f"blk.{layer}.{name}", shape
        yield "output_norm", (self.width,)
        if self.head:
            yield "output", (self.vocab, self.width)

    def tensor_bytes(self, name: str, shape: tuple[int, ...]) -> int:
        """Bytes of a tensor; vectors are float32."""
        if len(shape) == 1:
            return 4 * shape[0]
        return shape[0] * self.format_of(name).row_bytes(shape[1])

    def data(self, name: str, shape: tuple[int, ...], random: np.random.Generator) -> Iterator[npt.NDArray[np.uint8]]:
        """A tensor's bytes, in pieces."""
        if len(shape) == 1:
            yield np.ones(shape, np.float32).view(np.uint8)
            return
        format_ = self.format_of(name)
        left = self.tensor_bytes(name, shape)
        step = _PIECE // format_.block_bytes * format_.block_bytes
        while left:
            raw = np.frombuffer(random.bytes(min(step, left)), np.uint8).copy()
            left -= raw.size
            yield _finite(format_, raw)


def _finite(format_: WeightFormat, raw: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Random bytes as numbers that are neither infinite nor huge."""
    if mask := _FINITE.get(format_):
        return (raw.view(np.uint16) & np.uint16(mask)).view(np.uint8)
    if format_ is WeightFormat.F32:
        return (raw.view(np.uint32) & np.uint32(0xBDFFFFFF)).view(np.uint8)
    blocks = raw.reshape(-1, format_.block_bytes)
    for at in _SCALES[format_]:
        blocks[:, at : at + 2] = np.array([0.01], np.float16).view(np.uint8)
    return raw


def write_gguf(path: Path, model: RandomModel) -> None:
    """One GGUF file."""
    metadata = {
        "general.architecture": "llama",
        "general.file_type": _FILE_TYPES["q4_k_m" if model.mixed else model.format.value],
        "llama.block_count": model.layers,
        "llama.context_length": 4096,
        "llama.embedding_length": model.width,
        "llama.feed_forward_length": model.inner,
        "llama.attention.head_count": model.heads,
        "llama.attention.head_count_kv": model.kv_heads,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "llama.rope.dimension_count": model.width // model.heads,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": _tokens(model.vocab),
        "tokenizer.ggml.token_type": [1] * (model.vocab - 1) + [3],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": model.vocab - 1,
        "tokenizer.ggml.eos_token_id": model.vocab - 1,
    }
    named = list(model.shapes())
    header = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(named), len(metadata)))
    for key, value in metadata.items():
        header += _text(key) + _value(value)
    offset = 0
    for name, shape in named:
        kind = 0 if len(shape) == 1 else _KINDS[model.format_of(name)]
        header += _text(f"{name}.weight") + struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
        header += struct.pack("<IQ", kind, offset)
        offset += -(-model.tensor_bytes(name, shape) // 32) * 32
    random = np.random.default_rng(_SEED)
    with path.open("wb") as file:
        file.write(header + bytes(-len(header) % 32))
        for name, shape in named:
            for piece in model.data(name, shape, random):
                file.write(piece.data)
            file.write(bytes(-model.tensor_bytes(name, shape) % 32))


def write_folder(folder: Path, model: RandomModel, shards: int) -> None:
    """A folder with config.json, tokenizer.json and safetensors, in so many files. f32, f16 or bf16."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "model_type": "llama",
        "hidden_size": model.width,
        "intermediate_size": model.inner,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "vocab_size": model.vocab,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": not model.head,
        "eos_token_id": model.vocab - 1,
    }
    vocab = {token: index for index, token in enumerate(_tokens(model.vocab))}
    tokenizer = {"added_tokens": [], "model": {"type": "BPE", "vocab": vocab, "merges": []}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    named = [(_hugging_face(name), shape) for name, shape in model.shapes()]
    random = np.random.default_rng(_SEED)
    places: dict[str, str] = {}
    for shard in range(shards):
        part = named[len(named) * shard // shards : len(named) * (shard + 1) // shards]
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        places |= {name: file for name, _ in part}
        _write_shard(folder / file, model, part, random)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def _write_shard(
    path: Path, model: RandomModel, part: list[tuple[str, tuple[int, ...]]], random: np.random.Generator
) -> None:
    header, offset = {}, 0
    for name, shape in part:
        end = offset + model.tensor_bytes(name, shape)
        dtype = "F32" if len(shape) == 1 else model.format.upper()
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape in part:
            for piece in model.data(name, shape, random):
                file.write(piece.data)


def _hugging_face(name: str) -> str:
    names = {
        "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
        "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
    }  # fmt: skip
    blk, _, rest = name.partition(".")
    if blk != "blk":
        return f"{names[name]}.weight"
    layer, _, module = rest.partition(".")
    return f"model.layers.{layer}.{names[module]}.weight"


def _tokens(count: int) -> list[str]:
    """Tokens that a byte-level tokenizer accepts: printable letters, what the one merge makes, then numbers."""
    letters = [chr(code) for code in range(33, 127)]
    return [*(letters + ["ab"] + [f"w{index}" for index in range(count)])[: count - 1], "</s>"]


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: object) -> bytes:
    match value:
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + _text(value)
        case [str(), *_]:
            return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_text, value))
        case [*numbers]:
            return struct.pack("<IIQ", 9, 5, len(numbers)) + np.array(numbers, "<i4").tobytes()
    raise TypeError(value)


def main() -> None:
    """Write the model that the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="a .gguf file, or a folder for safetensors")
    parser.add_argument("--format", choices=[*sorted(_KINDS), "q4_k_m"], default="q4_0", help="q4_k_m: with --shape")
    parser.add_argument("--bytes", type=int, default=10**9)
    parser.add_argument("--shape", choices=sorted(SHAPES), help="sizes of a known model, instead of --bytes")
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--head", action="store_true")
    args = parser.parse_args()
    if args.shape:
        model = RandomModel.of_shape(args.format, args.shape)
    elif args.format == "q4_k_m":
        parser.error("q4_k_m needs --shape")
    else:
        model = RandomModel.of_bytes(args.format, args.bytes, head=args.head)
    if args.path.suffix == ".gguf":
        write_gguf(args.path, model)
    else:
        write_folder(args.path, model, args.shards)
    files = [args.path] if args.path.is_file() else sorted(args.path.iterdir())
    parameters = sum(math.prod(shape) for _, shape in model.shapes())
    print(f"{args.path}: {model.layers} layers, {parameters:,} weights, {sum(f.stat().st_size for f in files):,} bytes")


if __name__ == "__main__":
    main()

"""What the scripts that make tiny checkpoints have in common: the vocabulary, what is recorded, and the comparison.

A checkpoint is only good if it can tell right from nearly right, so ``insist`` wants attention that is peaked (the mean
largest probability is above 0.4) and logits whose standard deviation is above 1.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import GenerationConfig, PretrainedConfig, PreTrainedModel

__all__ = [
    "DATA",
    "END",
    "START",
    "VOCAB",
    "finish",
    "in_pairs",
    "insist",
    "open_gguf",
    "record",
    "run",
    "write_settings",
    "write_vocabulary",
]

DATA = Path(__file__).parent / "data"
VOCAB = 96
END, START = 94, 95
GREEDY = 24


def run(description: str, makers: Mapping[str, Callable[[Path], None]]) -> int:
    """The command line of a script: make each checkpoint in its folder, or with --check in a scratch folder, and
    compare. ``makers`` write everything about the checkpoint of that name."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    with tempfile.TemporaryDirectory() as scratch:
        for name, make in makers.items():
            if arguments.names and name not in arguments.names:
                continue
            folder = (Path(scratch) if arguments.check else DATA) / name
            folder.mkdir(parents=True, exist_ok=True)
            make(folder)
            if arguments.check:
                compare(DATA / name, folder)
                print(f"{name}: agrees")
    return 0


def write_settings(folder: Path, config: PretrainedConfig) -> None:
    """Everything in a folder but its weights."""
    config.save_pretrained(folder)
    GenerationConfig(bos_token_id=START, eos_token_id=[END]).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(), separators=(",", ":")) + "\n")


@torch.inference_mode()
def insist(name: str, model: PreTrainedModel, prompt: list[int]) -> None:
    """Refuse a checkpoint whose answer hardly depends on what is tested."""
    result = model(torch.tensor([prompt]), output_attentions=True)
    peak = float(torch.stack(result.attentions)[..., 8:, :].amax(dim=-1).mean())
    spread = float(result.logits.std())
    print(f"{name}: attention peak {peak:.2f}, logits' standard deviation {spread:.2f}", file=sys.stderr)
    assert peak > 0.4, f"{name}: attention is not peaked"
    assert spread > 1.0, f"{name}: logits do not spread"


@torch.inference_mode()
def record(weights: str, model: PreTrainedModel, prompts: list[list[int]]) -> dict[str, np.ndarray]:
    """Logits of each prompt, and the tokens of greedy decoding past every end token."""
    out: dict[str, np.ndarray] = {}
    for index, prompt in enumerate(prompts):
        out[f"prompt{index}"] = np.array(prompt, np.int32)
        out[f"{weights}_logits{index}"] = model(torch.tensor([prompt])).logits[0].numpy()
        tokens = list(prompt)
        for _ in range(GREEDY):
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
        out[f"{weights}_greedy{index}"] = np.array(tokens[len(prompt) :], np.int32)
    return out


def open_gguf(path: Path, architecture: str, config: PretrainedConfig) -> gguf.GGUFWriter:
    """A file with the metadata that all architectures have, as llama.cpp's converter writes it."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    return writer


def finish(writer: gguf.GGUFWriter) -> None:
    """Write the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def in_pairs(values: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp rotates neighbouring rows: row i of a head's first half is put before row i of its second half."""
    out = np.empty_like(values)
    head_dim = len(values) // heads
    for head in range(heads):
        block = values[head * head_dim : (head + 1) * head_dim]
        out[head * head_dim : (head + 1) * head_dim : 2] = block[: head_dim // 2]
        out[head * head_dim + 1 : (head + 1) * head_dim : 2] = block[head_dim // 2 :]
    return out


def vocabulary() -> list[str]:
    """One token per printable ASCII character but ``~``, in byte-level spelling (a space is Ġ), then the two special
    ones: no merges, so every text of those characters can be encoded."""
    return ["Ġ", *(chr(code) for code in range(33, 126)), "</s>", "<s>"]


def tokenizer() -> dict[str, Any]:
    """The vocabulary as tokenizer.json."""
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "added_tokens": [{"id": id_, "content": text, **special} for id_, text in ((END, "</s>"), (START, "<s>"))],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": {text: id_ for id_, text in enumerate(vocabulary())}, "merges": []},
    }


def write_vocabulary(writer: gguf.GGUFWriter) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(vocabulary())
    normal, control = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL
    writer.add_token_types([control if id_ in {END, START} else normal for id_ in range(VOCAB)])
    writer.add_bos_token_id(START)
    writer.add_eos_token_id(END)


def compare(old: Path, new: Path) -> None:
    """The same weights to the byte, logits and vectors within 1e-4 (other processors, other roundings), the same greedy
    tokens."""
    for path in sorted(new.iterdir()):
        if path.suffix in {".safetensors", ".gguf"} or path.name == "tokenizer.json":
            assert (old / path.name).read_bytes() == path.read_bytes(), f"{old / path.name} differs"
    before, after = np.load(old / "expected.npz"), np.load(new / "expected.npz")
    assert set(before) == set(after)
    for key in before:
        if before[key].dtype.kind == "f":
            np.testing.assert_allclose(after[key], before[key], atol=1e-4, rtol=0, err_msg=key)
        else:
            np.testing.assert_array_equal(after[key], before[key], err_msg=key)

"""Tiny seeded embedding models, encoders and a decoder, and the vectors that transformers makes.

Run by a Python that has torch, transformers and gguf (``make golden``); no part of the package is used.

    python tests/golden/generate_tiny_encoders.py [--check] [NAME ...]

For each ``data/<name>/`` gets config.json, modules.json and 1_Pooling/config.json (as sentence-transformers writes
them), tokenizer.json, model.safetensors and, where llama.cpp has a way to say it, model.gguf; and expected.npz: token
ids, the hidden states of every token, and the vectors of all texts as sentence-transformers computes them: one padded
batch, an attention mask, pooling under the mask. Weights are f16 in both files (vectors f32 in GGUF), so both give the
same values. --check makes all of it anew in a scratch folder and compares.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from tiny_checkpoint import END, START, VOCAB, finish, run, tokenizer, write_vocabulary
from transformers import AutoModel, BertForMaskedLM, BertTokenizer, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

COMMON = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 96,
    "layer_norm_eps": 1e-2,
}
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
PIECES = ["the", "tide", "##s", "come", "twice", "day", "moon", "##ing", "pull", "sea", "##er", "and", ".", ",", "!"]
WORDS = [*SPECIALS, *LETTERS, *(f"##{letter}" for letter in LETTERS), *PIECES]
TEXTS = [
    "The tides come twice a day.",
    "moon",
    "Sea, sea and SEA! The moon pulling the tides, and the tides pulling the sea, day and day and day and twice a day.",
    "naïve [SEP] café",
]


@dataclass(frozen=True)
class Case:
    """One checkpoint."""

    name: str
    model_type: str
    config: dict[str, Any]
    pooling: str
    normalize: bool
    gguf: bool = False
    masked_lm: bool = False
    """Saved with the head of its first training task, under names that begin with ``bert.``."""
    lengths: tuple[int, ...] = (3, 9, 70)
    """Of the token ids, where there is no WordPiece tokenizer."""
    common: dict[str, Any] = field(default_factory=lambda: COMMON)


ROPE = {"rope_type": "default", "rope_theta": 300.0}
DECODER = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "rope_parameters": ROPE,
    "bos_token_id": START,
    "eos_token_id": END,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
CASES = (
    Case("bert", "bert", {"vocab_size": len(WORDS)}, pooling="mean", normalize=True, gguf=True),
    Case(
        "bert_cls",
        "bert",
        {"vocab_size": len(WORDS), "hidden_act": "gelu_new", "type_vocab_size": 1},
        pooling="cls",
        normalize=False,
        masked_lm=True,
    ),
    Case(
        "roberta",
        "roberta",
        {"vocab_size": VOCAB, "pad_token_id": 1, "type_vocab_size": 1, "hidden_act": "gelu"},
        pooling="mean",
        normalize=True,
    ),
    Case("qwen3_embedding", "qwen3", {}, pooling="lasttoken", normalize=True, gguf=True, common=DECODER),
    Case(
        "xlm_roberta",
        "xlm-roberta",
        {"vocab_size": VOCAB, "pad_token_id": 3, "type_vocab_size": 1},
        pooling="cls",
        normalize=True,
        lengths=(3, 9, 40),
    ),
)


def main() -> int:
    makers = {case.name: partial(make, case, seed) for seed, case in enumerate(CASES, start=300)}
    return run(__doc__ or "", makers)


def make(case: Case, seed: int, folder: Path) -> None:
    """Write everything about one checkpoint."""
    rng = np.random.default_rng(seed)
    config = CONFIG_MAPPING[case.model_type](**case.common | case.config)
    config._attn_implementation = "eager"
    whole = BertForMaskedLM(config) if case.masked_lm else AutoModel.from_config(config)
    fill(whole.eval(), rng)
    body = whole.bert if case.masked_lm else whole
    batch = write_tokenizer(folder, rng, case)
    insist(case, body, batch[-1])
    state = {name: tensor.half().contiguous() for name, tensor in whole.state_dict().items()}
    if case.masked_lm:
        del state["cls.predictions.decoder.weight"], state["cls.predictions.decoder.bias"]  # tied
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    np.savez_compressed(folder / "expected.npz", **record(case, body, batch))
    if case.gguf:
        write_gguf(folder / "model.gguf", case, body)
    config.architectures = [type(whole).__name__]
    config.dtype = "float16"
    config.save_pretrained(folder)
    write_modules(folder, case)


def fill(model: PreTrainedModel, rng: np.random.Generator) -> None:
    """Weights that spread, each an f16: queries and keys large enough to peak the attention, norms not all alike."""
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            values = rng.standard_normal(tensor.shape)
            if name.lower().endswith("norm.weight"):
                heads = name.endswith(("q_norm.weight", "k_norm.weight"))
                values = rng.uniform(0.5, 1.5, tensor.shape) + float(heads)
            elif name.endswith("bias"):
                values *= 0.5
            elif "embed" in name:
                values *= 0.7
            else:
                sharp = any(part in name for part in ("query", "key", "q_proj", "k_proj"))
                values *= (2.1 if sharp else 1.3) / math.sqrt(tensor.shape[-1])
            tensor.copy_(torch.from_numpy(values.astype(np.float16).astype(np.float32)))


def write_tokenizer(folder: Path, rng: np.random.Generator, case: Case) -> list[list[int]]:
    """The tokenizer, and the token ids of what is embedded: texts, or for vocabularies of characters just ids."""
    if case.model_type == "bert":
        made = BertTokenizer(vocab={word: id_ for id_, word in enumerate(WORDS)}, do_lower_case=True)
        (folder / "tokenizer.json").write_text(made.backend_tokenizer.to_str() + "\n")
        return [made.encode(text, split_special_tokens=True) for text in TEXTS]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(), separators=(",", ":")) + "\n")
    return [rng.integers(4, END, length).tolist() for length in case.lengths]


@torch.inference_mode()
def insist(case: Case, model: PreTrainedModel, ids: list[int]) -> None:
    """Refuse a checkpoint whose vectors hardly depend on what is tested."""
    peak = float(torch.stack(model(torch.tensor([ids]), output_attentions=True).attentions).amax(dim=-1).mean())
    print(f"{case.name}: attention peak {peak:.2f}", file=sys.stderr)
    assert peak > 0.3, f"{case.name}: attention is not peaked"


@torch.inference_mode()
def record(case: Case, model: PreTrainedModel, batch: list[list[int]]) -> dict[str, np.ndarray]:
    """Hidden states of each text by itself; vectors from one padded batch, as sentence-transformers pools them."""
    out: dict[str, np.ndarray] = {"count": np.array(len(batch))}
    if case.model_type == "bert":
        out["texts"] = np.array(TEXTS)
    longest = max(map(len, batch))
    pad = model.config.pad_token_id
    ids = torch.tensor([row + [pad] * (longest - len(row)) for row in batch])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in batch])
    hidden = model(ids, attention_mask=mask).last_hidden_state
    vectors = {
        "mean": (hidden * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True),
        "cls": hidden[:, 0],
        "last": hidden[torch.arange(len(batch)), mask.sum(1) - 1],
    }
    for mode, rows in vectors.items():
        out[mode] = rows.numpy()
        out[f"{mode}_normalized"] = torch.nn.functional.normalize(rows, dim=1).numpy()
    for index, row in enumerate(batch):
        out[f"ids{index}"] = np.array(row, np.int32)
        out[f"hidden{index}"] = model(torch.tensor([row])).last_hidden_state[0].numpy()
    return out


def write_modules(folder: Path, case: Case) -> None:
    """What sentence-transformers' ``save`` writes."""
    kinds = ["Transformer", "Pooling", *(["Normalize"] if case.normalize else [])]
    modules = [
        {
            "idx": index,
            "name": str(index),
            "path": "" if index == 0 else f"{index}_{kind}",
            "type": f"sentence_transformers.models.{kind}",
        }
        for index, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules, indent=2) + "\n")
    modes = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
    chosen = {"mean": "mean_tokens", "cls": "cls_token"}.get(case.pooling, case.pooling)
    pooling = {f"pooling_mode_{mode}": mode == chosen for mode in modes}
    (folder / "1_Pooling").mkdir(exist_ok=True)
    content = {"word_embedding_dimension": case.common["hidden_size"], **pooling, "include_prompt": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(content, indent=2) + "\n")


def write_gguf(path: Path, case: Case, model: PreTrainedModel) -> None:
    """The checkpoint as llama.cpp's converter would write it."""
    config = model.config
    writer = gguf.GGUFWriter(path, case.model_type)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    if case.model_type == "bert":
        arch = gguf.MODEL_ARCH.BERT
        writer.add_layer_norm_eps(config.layer_norm_eps)
        writer.add_causal_attention(False)
        writer.add_pooling_type(gguf.PoolingType.MEAN)
        writer.add_tokenizer_model("bert")
        writer.add_token_type_count(config.type_vocab_size)
        kinds = {"[UNK]": gguf.TokenType.UNKNOWN}
        kinds |= dict.fromkeys(set(SPECIALS) - {"[UNK]"}, gguf.TokenType.CONTROL)
        writer.add_token_list([w if w in kinds else w[2:] if w.startswith("##") else f"▁{w}" for w in WORDS])
        writer.add_token_types([kinds.get(word, gguf.TokenType.NORMAL) for word in WORDS])
        for role, word in (("bos", "[CLS]"), ("sep", "[SEP]"), ("unk", "[UNK]"), ("pad", "[PAD]")):
            getattr(writer, f"add_{role}_token_id")(WORDS.index(word))
    else:
        arch = gguf.MODEL_ARCH.QWEN3
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
        writer.add_vocab_size(config.vocab_size)
        writer.add_pooling_type(gguf.PoolingType.LAST)
        write_vocabulary(writer)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        full = name if case.model_type == "bert" else f"model.{name}"
        new_name = names.get_name(full, try_suffixes=(".weight", ".bias"))
        if new_name is None or "pooler" in name:
            continue
        values = tensor.numpy()
        writer.add_tensor(new_name, np.ascontiguousarray(values, np.float32 if values.ndim == 1 else np.float16))
    finish(writer)


if __name__ == "__main__":
    sys.exit(main())

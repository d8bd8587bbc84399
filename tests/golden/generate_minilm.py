"""Vectors of all-MiniLM-L6-v2 by transformers: the model, the mean under the attention mask, divided by its length.

Run by a Python that has torch and transformers (``make golden``; without the model it says so and does nothing); no
part of the package is used. sentence-transformers does the same three things (its modules Transformer, Pooling and
Normalize).

    TIDEMILL_TEST_MINILM=FOLDER python tests/golden/generate_minilm.py [--check]

Writes ``data/minilm.npz``: texts, their token ids, and one vector each, in float32; and the last text's vector where it
is cut to what the model's sentence_bert_config.json says, as sentence-transformers does.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModel, BertTokenizer

DATA = Path(__file__).parent / "data" / "minilm.npz"
MOST_TOKENS = 256
TEXTS = [
    "Why does the tide come twice a day?",
    "The moon pulls the sea, and the sea follows.",
    "moon",
    "Ebbe und Flut",
    "naïve café, 東京 — and a word nobody knows: zxqvwy",
    "a",
    "def tide(hours: float) -> float: return 2 * math.sin(hours / 12.42)",
    " ".join(f"At hour {hour} the water stands {hour * 7 % 13} feet high." for hour in range(30)),
]


@torch.inference_mode()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    if "TIDEMILL_TEST_MINILM" not in os.environ:
        print("minilm: TIDEMILL_TEST_MINILM names no folder, nothing is compared")
        return 0
    folder = Path(os.environ["TIDEMILL_TEST_MINILM"])
    torch.set_num_threads(1)
    names = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    tokenizer = BertTokenizer(vocab={name: id_ for id_, name in enumerate(names)}, do_lower_case=True)
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    made = {"texts": np.array(TEXTS)}
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
    mask = batch["attention_mask"][:, :, None]
    mean = (model(**batch).last_hidden_state * mask).sum(1) / mask.sum(1)
    made["vectors"] = torch.nn.functional.normalize(mean, dim=1).numpy()
    short = tokenizer(TEXTS[-1], truncation=True, max_length=MOST_TOKENS, return_tensors="pt")
    mean = model(**short).last_hidden_state.mean(1)
    made["cut"] = torch.nn.functional.normalize(mean, dim=1).numpy()[0]
    for index, text in enumerate(TEXTS):
        made[f"ids{index}"] = np.array(tokenizer.encode(text), np.int32)
    if not arguments.check:
        np.savez_compressed(DATA, **made)
        return 0
    before = np.load(DATA)
    for key, value in made.items():
        if value.dtype.kind == "f":
            np.testing.assert_allclose(value, before[key], atol=1e-5, rtol=0)
        else:
            np.testing.assert_array_equal(value, before[key])
    print("minilm: agrees")
    return 0


if __name__ == "__main__":
    sys.exit(main())

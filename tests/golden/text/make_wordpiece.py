"""Records what transformers and llama.cpp make of the texts by WordPiece; see ``make_golden.py``, which runs this."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from texts import COMPOSED, TEXTS
from tokenizers import normalizers, pre_tokenizers
from vocabularies import ids_by_llama_cpp

__all__ = ["make_minilm", "make_wordpiece"]

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PLAIN = [*TEXTS, *COMPOSED, "unaffable Embeddings RUNNING naïve", "x" * 150]


def gather(*, lowercase: bool) -> list[str]:
    """A vocabulary in the order of its ids: letters, frequent beginnings and frequent ends of the texts' words.

    Gathered by counting, because the library's trainer gives another vocabulary each time.
    """
    normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    cut = pre_tokenizers.BertPreTokenizer()
    words = [word for text in TEXTS for word, _ in cut.pre_tokenize_str(normalizer.normalize_str(text))]
    letters = Counter(letter for word in words for letter in word)
    starts = Counter(word[:size] for word in words for size in range(2, len(word) + 1))
    ends = Counter(word[size:] for word in words for size in range(1, len(word)))
    names = [*SPECIALS, *most_frequent(letters, 150), *most_frequent(starts, 220)]
    return [*names, *(f"##{end}" for end in most_frequent(ends, 200))]


def most_frequent(counts: Counter[str], number: int) -> list[str]:
    return sorted(counts, key=lambda text: (-counts[text], text))[:number]


def gguf_arrays(names: list[str]) -> dict[str, list[Any]]:
    """As the converters of llama.cpp write them: word beginnings marked, insides not."""
    kinds = {"[UNK]": 2, "[PAD]": 3, "[CLS]": 3, "[SEP]": 3, "[MASK]": 3}
    return {
        "tokens": [name if name in kinds else name[2:] if name.startswith("##") else f"▁{name}" for name in names],
        "token_types": [kinds.get(name, 1) for name in names],
    }


def wordpiece_ids(names: list[str], texts: list[str], *, lowercase: bool) -> list[list[int]]:
    """By transformers, with what belongs around a text."""
    from transformers import BertTokenizer

    vocabulary = {name: i for i, name in enumerate(names)}
    tokenizer = BertTokenizer(vocab=vocabulary, do_lower_case=lowercase)
    return [tokenizer.encode(text) for text in texts]


def make_family(*, lowercase: bool) -> dict[str, Any]:
    names = gather(lowercase=lowercase)
    vocabulary = gguf_arrays(names)
    roles = {"bos_token_id": 2, "unk_token_id": 1, "sep_token_id": 3, "pad_token_id": 0}
    fields = {"tokenizer_model": "bert", "token_type_count": 2, **roles}
    return {
        "vocabulary": vocabulary,
        "texts": PLAIN,
        "transformers": wordpiece_ids(names, PLAIN, lowercase=lowercase),
        "llama_cpp": ids_by_llama_cpp(vocabulary, PLAIN, architecture="bert", around=True, **fields),
    }


def make_wordpiece() -> dict[str, Any]:
    return {"uncased": make_family(lowercase=True), "cased": make_family(lowercase=False)}


def make_minilm(folder: Path) -> dict[str, Any]:
    names = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    return {"texts": PLAIN, "ids": wordpiece_ids(names, PLAIN, lowercase=True)}

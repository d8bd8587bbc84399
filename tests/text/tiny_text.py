"""Text sources for these tests: the tiny vocabulary of the golden files in both forms, and one with space marks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, processors

from tidemill.text.source import GgufVocabulary, TextSource

GOLDEN = Path(__file__).parent.parent / "golden" / "text"


def golden(name: str) -> Any:
    return json.loads((GOLDEN / name).read_text())


def json_source(**changes: Any) -> TextSource:
    special = {"bos_token": "<|begin|>", "eos_token": "<|im_end|>"}
    content = (GOLDEN / "tiny_tokenizer.json").read_bytes()
    return TextSource(**{"tokenizer_json": content, "special_tokens": special, "where": "tiny", **changes})


def gguf_vocabulary(**changes: Any) -> GgufVocabulary:
    given = {"model": "gpt2", "pre": "smollm", "bos_id": 0, "eos_id": 2, **golden("tiny_gguf.json")}
    return GgufVocabulary(**{**given, **changes})


def gguf_source(**changes: Any) -> TextSource:
    return TextSource(gguf=gguf_vocabulary(**changes), where="tiny.gguf")


def space_marking_source(*, prefix: bool) -> TextSource:
    """A tokenizer.json as Llama 2 has it: spaces are ``▁``, bytes are tokens, a space goes before the text."""
    names = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a", "你"]
    backend = Backend(models.BPE({name: i for i, name in enumerate(names)}, [("▁", "a")], byte_fallback=True))
    backend.add_special_tokens(["<unk>", "<s>"])
    steps: list[Any] = [normalizers.Prepend("▁")] if prefix else []
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    ends: list[Any] = [decoders.Strip(" ", 1, 0)] if prefix else []
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *ends])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return TextSource(tokenizer_json=backend.to_str().encode(), special_tokens={"bos_token": "<s>"}, where="sp")


def sentencepiece_vocabulary(family: str, **changes: Any) -> GgufVocabulary:
    """A trained one: ``llama2`` puts a space before the text, ``gemma`` does not and has runs of spaces as tokens."""
    arrays = golden("tiny_sentencepiece.json")[family]["vocabulary"]
    roles = {"bos_id": 1, "eos_id": 2, "unk_id": 0, "add_space_prefix": family == "llama2"}
    return GgufVocabulary(**{"model": "llama", "pre": "default", "merges": (), **roles, **arrays, **changes})


def sentencepiece_source(family: str, **changes: Any) -> TextSource:
    return TextSource(gguf=sentencepiece_vocabulary(family, **changes), where="sp.gguf")


def sentencepiece_json_source(family: str, **parts: Any) -> TextSource:
    """The same as tokenizer.json. ``parts``: fields of it to replace."""
    content = json.loads((GOLDEN / f"tiny_{family}_tokenizer.json").read_text())
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return TextSource(tokenizer_json=json.dumps(content | parts).encode(), special_tokens=special, where="sp")


def wordpiece_vocabulary(family: str, **changes: Any) -> GgufVocabulary:
    """A gathered one, ``cased`` or ``uncased``."""
    arrays = golden("tiny_wordpiece.json")[family]["vocabulary"]
    given = {"model": "bert", "pre": "", "merges": (), "bos_id": 2, "unk_id": 1, "sep_id": 3, "pad_id": 0, **arrays}
    return GgufVocabulary(**{**given, **changes})

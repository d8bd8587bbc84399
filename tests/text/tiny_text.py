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

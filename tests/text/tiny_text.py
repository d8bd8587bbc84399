"""Text sources for these tests: the tiny vocabulary of the golden files, as tokenizer.json and as GGUF has it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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

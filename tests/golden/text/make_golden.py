"""Records what transformers and llama.cpp make of the texts below; run with an interpreter that has both.

    python tests/golden/text/make_golden.py [PATH OF SmolLM2-135M-Instruct.Q4_1.gguf]

Writes, next to itself:
- ``tiny_tokenizer.json``   a byte-level BPE tokenizer trained here. It is trained on whole lines, so that its merges
                            cross words, digits and signs, and every cutting rule gives other ids;
- ``tiny_gguf.json``        the same vocabulary as GGUF metadata has it;
- ``tiny_ids.json``         ids of texts and chats with it, by transformers, and by llama.cpp per rule;
- ``smollm2_ids.json``      ids of texts and chats with SmolLM2's own vocabulary (only if the path is given).
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

HERE = Path(__file__).parent

TEXTS = [
    "",
    " ",
    "Hello",
    " Hello",
    "Hello, world! How are you today?",
    "The quick brown fox jumps over the lazy dog.",
    "I'm sure they've said we'll, you'd, it's, DON'T, I'LL",
    "1",
    "12",
    "1234567890",
    "on 2024-03-22 at 13:37, 3.14159 times 1,000,000",
    "a  1234   5",
    "x=1;y=22;z=333",
    "½ Ⅷ ² ١٢٣ १२३ 一二三",
    "  leading and trailing  ",
    "\n",
    "\n\n\nnew lines\n\n",
    "\r\nWindows\r\nlines\r\n",
    "\ttabs\t\there",
    "words   \n  \n   and spaces before a newline   \n",
    'def f(x: int) -> str:\n    return f"{x!r}"  # comment\n\n\nclass A:\n\tpass\n',
    "for (int i = 0; i < n; ++i) { a[i] += b[i] * 2; }",
    '{"key": [1, 2.5, null, true], "other": "va\\"lue"}',
    "https://example.com/path?query=1&other=%20#fragment",
    "C++ & C# <b>bold</b> $100 ^_^ ~|~ `tick` @user #tag",
    "...!!!???---===>>>",
    "don't-stop_me.now/please\\thanks",
    "你好，世界！今天天气怎么样？",
    "日本語のテキストとカタカナ、ひらがな。",
    "한국어 문장입니다.",
    "中文 and English 混合 text 123 汉字",
    "Привет, мир! Ёлка",
    "مرحبا بالعالم، كيف حالك؟",
    "שלום עולם",
    "नमस्ते दुनिया",
    "สวัสดีชาวโลก",
    "😀 😃👍🏽 👨‍👩‍👧‍👦 🇩🇪",
    "naïve café Zürich Ærø ŒUVRE ß",
    "∑∫√π ≤ ≥ ≠ → ⇒ ∀x∈ℝ",
    "zero\u200bwidth\u200dand\u00a0nbsp\u2003em\u3000ideographic",
    "control \x00\x01\x1f\x7f characters",
    "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    " " * 37 + "x" + " " * 3,
    "mixedCASEWords ALLCAPS snake_case kebab-case",
    "'s 't 're 'S 'T",
    "“curly” ‘quotes’ – dashes — … ellipsis",
    "\ufeffbyte order mark",
    "private \ue000 and \U0010fffd last",
    "Ω≈ç√∫˜µ≤≥÷ åß∂ƒ©˙∆˚¬…æ",
]
COMPOSED = ["e\u0301 a\u030a n\u0303 \u1112\u1161\u11ab", "cafe\u0301 123", "\u212b \u2126"]
TYPED = ["<|im_start|>", "a<|im_end|>b", "<|im_start|>user\nhi<|im_end|>\n", " <|im_end|> <|im_end|><|im_start|>"]
USER_DEFINED = ["<think>", "x <think> y</think>", "<|im_start|><think>\n"]

SMOLLM2_CHATS = [
    [{"role": "user", "content": "Hi"}],
    [{"role": "system", "content": "You are terse."}, {"role": "user", "content": "What is 12 + 34?"}],
    [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello! How can I help?"},
        {"role": "user", "content": "Tell me about tides."},
    ],
    [{"role": "user", "content": "  leading and trailing  "}],
    [{"role": "user", "content": "\n\nnewlines\n\n"}],
    [{"role": "user", "content": ""}],
    [{"role": "user", "content": " "}],
    [{"role": "user", "content": "😀👨‍👩‍👧‍👦 emoji"}],
    [{"role": "user", "content": "你好，世界！123"}],
    [{"role": "user", "content": "مرحبا بالعالم"}],
    [{"role": "user", "content": "def f():\n    return '<b>&amp;</b>'\n"}],
    [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
    [{"role": "assistant", "content": "I speak first."}],
    [{"role": "system", "content": "only system"}],
    [{"role": "user", "content": "a"}, {"role": "system", "content": "mid"}, {"role": "user", "content": "b"}],
]

TINY_TEMPLATES = {
    "with_bos": "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "without_bos": "{% for m in messages %}\n    {%- if not loop.last %}\n{{ m['role'] | upper }}: {{ m['content'] }}\n"
    "    {%- else %}\n{{ m['content'] }}<|im_end|>\n    {%- endif %}\n{% endfor %}{{ messages | tojson }}",
}
TINY_CHATS = SMOLLM2_CHATS[:12]

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
    import gguf
    import llama_cpp

    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/tiny.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(vocabulary["tokens"])
        writer.add_token_types(vocabulary["token_types"])
        writer.add_token_merges(vocabulary["merges"])
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(2)
        writer.add_context_length(512)
        writer.add_embedding_length(64)
        writer.add_block_count(1)
        writer.add_feed_forward_length(64)
        writer.add_head_count(1)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        model = llama_cpp.Llama(path, vocab_only=True, verbose=False)
        return [model.tokenize(text.encode(), add_bos=False, special=False) for text in texts]


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
            "rule_texts": TEXTS,
            "rules_llama_cpp": {pre: by_llama_cpp(vocabulary, pre, TEXTS) for pre in LLAMA_CPP_RULES},
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
    make_tiny()
    if len(sys.argv) > 1:
        make_smollm2(Path(sys.argv[1]))

"""Records where the regex library cuts texts by the expressions that models publish for their pre-tokenizers.

    python tests/golden/text/make_rules.py

Writes ``rules.json``: for each rule, named as a GGUF file does, its expressions, and the ends of all pieces of each
text. The expressions are written here as their sources have them (a tokenizer.json, the model's own code, or llama.cpp
where it quotes neither); each is applied to every piece that the one before has left.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path

import regex
from texts import COMPOSED, RULE_TEXTS, TEXTS

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
KIMI = (
    r"[\p{Han}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
WORDS_AND_SIGNS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK_V3 = [r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+", WORDS_AND_SIGNS]
BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
THREES = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"

RULES: dict[str, list[str]] = {
    "gpt-2": [GPT2],
    "exaone": [r"\p{N}", GPT2],
    "llama-bpe": [LLAMA3],
    "qwen2": [QWEN2],
    "bailingmoe": [
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
    ],
    "grok-2": [QWEN2],
    "solar-open": [QWEN2],
    "stablelm2": [QWEN2],
    "laguna": [r"[^\n]+|[\n]+", QWEN2],
    "ufakzeka": [r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"],
    "qwen35": [
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    ],
    "k2-horizon": [
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}|\p{M}|\u200C|\u200D)+"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
    "minicpm5": [r"\p{N}{1,3}", QWEN2.replace(r"|\p{N}|", r"|\p{N}+|")],
    "jais-2": [
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)"
        r"|\s{1,2}(?!\S)|\s{1}"
    ],
    "seed-coder": [
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    ],
    "exaone-moe": [
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
    ],
    "gpt-4o": [O200K],
    "minimax-m2": [O200K],
    "tekken": [O200K.replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "").replace("{1,3}", "")],
    "kimi-k2": [KIMI],
    "tiny_aya": [r"\d{1,3}(?=(?:\d{3})*\b)", O200K],
    "youtu": [
        r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥\u3040-ゟ゠-ヿ]+",
        O200K.replace("{1,3}", ""),
    ],
    "bloom": [BLOOM],
    "viking": [BLOOM, r"\p{N}"],
    "chameleon": [
        "<sentinel:[0-9]+>",
        "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
        r"([\t\n]|    |  )",
        r"\p{N}",
        r"[\p{P}!-/:-@\[-`{-~]",
        GPT2,
    ],
    "superbpe": [r"\p{N}+", r"(?=(\d{3})+(?!\d))"],
    "afmoe": [
        THREES,
        "[一-鿿㐀-䶿豈-\ufaff\u3040-ゟ゠-ヿ･-ﾟ⼀-\u2fdfเ-\u0e7f\u0e80-\u0effក-\u17ffက-႟ꩠ-ꩿꧠ-\ua9ff가-\ud7afᄀ-ᇿ]+",
        WORDS_AND_SIGNS,
    ],
    "deepseek-v3": DEEPSEEK_V3,
    "spark2_5": [
        *DEEPSEEK_V3[:2],
        WORDS_AND_SIGNS.replace(r"[\r\n]*|\s*[\r\n]+|", r"|[\r\n]|"),
        r"\p{N}",
    ],
}
ALPHABET = [*"aAbZ' /\n\r\t.,-1239٣½²", "  ", "    ", "\u00a0", "ß", "ǅ", "ʰ", "中", "ก", "한", "ㄱ", "ㄅ", "。", "،"]
ALPHABET += ["\u0301", "é", "İ", "\u200c", "\u200d", "😀", "'ll", "'S", "'ſ", "𠀀", "々", "\x00", "\u2028", "(", "|"]
MORE = [
    "<sentinel:12> IMGIMGABCZ IMGIMGZ",
    "1 12 123 1234 12345 123456 1234567a a1234 12½ ½½½½ ١٢٣٤٥",
    "“Hello,” 世界世世世界世界——I'm here. CAN'T wait 'til 2026.世界世界々〇",
    "two words and  two  spaces한 국 어\u0301 e\u0301 e",
    " " * 1000 + "x" + " " * 77 + "\n" + "\t" * 5,
    "می\u200cخواهم क्\u200dष x\u200dy",
    "Türkiye'nin İstanbul'da it's IT'S",
]


def pieces(text: str, expressions: Iterable[str]) -> list[str]:
    """Matches, and what lies between them, of one expression after the other."""
    found = [text]
    for expression in expressions:
        compiled = regex.compile(expression, regex.VERSION1)
        found = [piece for whole in found for piece in cut(whole, compiled)]
    return found


def cut(text: str, expression: regex.Pattern[str]) -> Iterable[str]:
    done = 0
    for match in expression.finditer(text):
        yield from filter(None, (text[done : match.start()], match[0]))
        done = match.end()
    yield from filter(None, (text[done:],))


def ends(found: Iterable[str]) -> list[int]:
    places, place = [], 0
    for piece in found:
        place += len(piece)
        places.append(place)
    return places


def main() -> None:
    chosen = random.Random(57)
    drawn = ["".join(chosen.choices(ALPHABET, k=chosen.randint(1, 30))) for _ in range(250)]
    texts = [*TEXTS, *RULE_TEXTS, *COMPOSED, *MORE, *drawn]
    content = {
        "texts": texts,
        "rules": RULES,
        "ends": {n: [ends(pieces(t, r)) for t in texts] for n, r in RULES.items()},
    }
    path = Path(__file__).parent / "rules.json"
    path.write_text(json.dumps(content, ensure_ascii=True, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()

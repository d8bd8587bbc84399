"""Regular expressions that cut text before byte-level BPE, as the models' own tokenizers state them.

Each is found from the left; alternatives are tried in order. Dialect: Oniguruma (``&&`` intersects classes). Sources:
the pre_tokenizer of the models' tokenizer.json or tokenization code, and where these could not be read, the expressions
of llama.cpp, which gave the rules their names.
"""

from __future__ import annotations

__all__ = [
    "ASIAN_RUNS",
    "BLOOM_WORDS",
    "CASED_WORDS",
    "CASED_WORDS_NO_HAN",
    "CASED_WORDS_OF_TEKKEN",
    "CASED_WORDS_SINGLE_DIGITS",
    "CHAMELEON",
    "CHINESE_AND_JAPANESE",
    "CHINESE_AND_KOREAN",
    "CODER_LETTERS",
    "DECIMAL_THREES",
    "DEEPSEEK_LLM",
    "DIGIT",
    "EXAONE_MOE",
    "FALCON_SIGNS",
    "GPT2_PIECES",
    "HALVING_SPACES",
    "JOINED_SCRIPTS",
    "LETTERS_AND_MARKS",
    "LINES",
    "NUMBER_RUNS",
    "SEED_CODER",
    "SINGLE_DIGITS",
    "SINGLE_DIGITS_NO_CONTRACTIONS",
    "SPARK",
    "THREES_BEFORE_A_BOUNDARY",
    "THREES_FROM_THE_RIGHT",
    "UP_TO_THREE_DIGITS",
    "WHOLE_NUMBERS",
    "WORDS_AND_SIGNS",
    "YOUTU_RUNS",
]

_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_TAIL = rf"{_SIGNS}|{_SPACES}"
_TAIL_WITH_SLASH = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_BEFORE_WORD = r"[^\r\n\p{L}\p{N}]?"
_ASCII_PUNCTUATION = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
_DEEPSEEK_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-"
    "ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-"
    "𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
"""Letters with case, as the models' own rule lists them."""


def _cased(after: str, digits: str, *, without: str = "", tail: str = _TAIL_WITH_SLASH) -> str:
    """Words end where a capital follows a small letter. ``after``: what may still belong to one; ``without``: narrows
    the class of letters."""
    upper, lower = (f"[{letters}{without}]" for letters in (_UPPER, _LOWER))
    words = f"{_BEFORE_WORD}{upper}*{lower}+{after}|{_BEFORE_WORD}{upper}+{lower}*{after}"
    return f"{words}|{digits}|{tail}"


GPT2_PIECES = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""GPT-2's, which the library's byte-level step also has built in."""
DIGIT = r"\p{N}"
UP_TO_THREE_DIGITS = rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}{{1,3}}|{_TAIL}"
SINGLE_DIGITS = rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}|{_TAIL}"
SINGLE_DIGITS_NO_CONTRACTIONS = rf"{_LETTERS}|\p{{N}}|{_TAIL}"
WHOLE_NUMBERS = rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}+|{_TAIL}"
LETTERS_AND_MARKS = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
JOINED_SCRIPTS = rf"{_CONTRACTIONS}|{_BEFORE_WORD}(?:\p{{L}}|\p{{M}}|\u200C|\u200D)+|\p{{N}}{{1,3}}|{_TAIL}"
"""Marks and the joiners of Indic and Persian writing stay in their word."""
HALVING_SPACES = (
    rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}{{1,3}}|{_SIGNS}|\s*[\r\n]+"
    + "".join(rf"|\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4))
    + r"|\s{1,2}(?!\S)|\s{1}"
)
"""Runs of spaces end at powers of two."""
SEED_CODER = rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
EXAONE_MOE = (
    rf"{_CONTRACTIONS}|{_BEFORE_WORD}(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
"""Words with one space between them are one piece."""
CASED_WORDS = _cased(f"{_CONTRACTIONS}?", r"\p{N}{1,3}")
CASED_WORDS_SINGLE_DIGITS = _cased(f"{_CONTRACTIONS}?", r"\p{N}")
CASED_WORDS_OF_TEKKEN = _cased("", r"\p{N}")
CASED_WORDS_NO_HAN = r"[\p{Han}]+|" + _cased(f"{_CONTRACTIONS}?", r"\p{N}{1,3}", without=r"&&[^\p{Han}]", tail=_TAIL)
BLOOM_WORDS = r" ?[^(\s|.,!?…。，、।۔،)]+"
FALCON_SIGNS = r"[\p{P}\$\+<=>\^~\|`]+"
LINES = r"[^\n]+|[\n]+"
NUMBER_RUNS = r"\p{N}+"
THREES_FROM_THE_RIGHT = r"^\p{N}{1,2}(?=(?:\p{N}{3})*$)|\p{N}{3}"
"""Of a piece that is a run of numbers: groups of three, the first one shorter. The models state it as a look-ahead over
the rest of the run at every place, whose cost is the square of the run; so for ``DECIMAL_THREES``."""
DECIMAL_THREES = (r"(?:(?<!\d)|(?<=[^\d]\d)|(?<=[^\d]\d\d)|(?<=\A\d)|(?<=\A\d\d))(?=(?:\d{3})+(?!\d))", r"\d{3}(?=\d)")
"""The same of decimal digits alone: a first cut in each run, then one after every three."""
THREES_BEFORE_A_BOUNDARY = (r"(?<!\d)\d++\b", r"\A\d{1,2}(?=(?:\d{3})+\z)", r"\G\d{3}")
"""The same of those runs alone that end where a word ends; others are cut from the left, as the next rule would."""
CHINESE_AND_KOREAN = r"[一-龥ࠀ-一가-퟿]+"
CHINESE_AND_JAPANESE = r"[一-龥぀-ゟ゠-ヿ]+"
ASIAN_RUNS = r"[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+"
YOUTU_RUNS = r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+"
WORDS_AND_SIGNS = (
    rf"{_ASCII_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
)
SPARK = (
    rf"{_ASCII_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    r"| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"
)
CODER_LETTERS = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CHINESE_AND_KOREAN, r"\p{N}")
DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_DEEPSEEK_LETTERS}]+",
    r"\s?[!-/:-~！-／：-～‘-‟\u3000-。]+",
    r"\s+$",
    CHINESE_AND_KOREAN,
    r"\p{N}+",
)
CHAMELEON = (
    "<sentinel:[0-9]+>",
    "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
    r"([\t\n]|    |  )",
    r"\p{N}",
    r"[\p{P}!-/:-@\[-`{-~]",
)
"""Places of images, then indents, digits and signs one by one."""

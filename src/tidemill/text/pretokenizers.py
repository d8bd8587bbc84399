"""How text is cut before byte-level BPE, by the name a GGUF file gives the rule (``tokenizer.ggml.pre``).

A GGUF file names the rule but does not contain it. Each rule here is the one in the tokenizer.json of the models that
the name stands for; a name that is not here is refused, because a guessed rule gives wrong ids in silence.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers

__all__ = ["PRE_RULES", "PreRule"]

_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE_WORD = r"[^\r\n\p{L}\p{N}]?"
_TAIL_WITH_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2_PIECES = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_UP_TO_THREE_DIGITS = rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}{{1,3}}|{_TAIL}"
_SINGLE_DIGITS = rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}|{_TAIL}"
_ASCII_PUNCTUATION = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
_DEEPSEEK_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-"
    "ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-"
    "𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
"""Letters with case, as the models' own rule lists them."""
_CHINESE_AND_KOREAN = r"[一-龥ࠀ-一가-퟿]+"


def _by_case(after: str, digits: str) -> str:
    """Words end where a capital follows a small letter; ``after``: what may still belong to a word."""
    return (
        f"{_BEFORE_WORD}{_UPPER}*{_LOWER}+{after}|{_BEFORE_WORD}{_UPPER}+{_LOWER}*{after}|{digits}|{_TAIL_WITH_SLASH}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PreRule:
    """One named rule and what goes with it in the models it stands for."""

    splits: tuple[str, ...] = ()
    """Regular expressions applied in order; each match and each stretch between matches becomes a piece."""
    gpt2: bool = False
    """Cut each piece once more by GPT-2's own expression (letters, digits, other, spaces)."""
    nfc: bool = False
    """Unicode-compose the text first."""
    ignore_merges: bool = False
    """A piece that is a token as a whole is taken as that token, whatever the merges would make of it."""
    add_bos: bool = False
    """Plain prompts start with BOS where the file does not say."""

    def normalizer(self) -> normalizers.Normalizer | None:
        """What is done to the text before it is cut."""
        return normalizers.NFC() if self.nfc else None

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        """The rule as the tokenizers library takes it; it ends with the mapping of bytes to characters."""
        steps: list[pre_tokenizers.PreTokenizer] = [
            pre_tokenizers.Split(Regex(split), behavior="isolated") for split in self.splits
        ]
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=self.gpt2))
        return pre_tokenizers.Sequence(steps)


_GPT2 = PreRule(gpt2=True)
_DIGITS_THEN_GPT2 = PreRule(splits=(r"\p{N}",), gpt2=True)
_LLAMA3 = PreRule(splits=(_UP_TO_THREE_DIGITS,), ignore_merges=True, add_bos=True)
_QWEN2 = PreRule(splits=(_SINGLE_DIGITS,), nfc=True)
_CL100K = PreRule(splits=(_UP_TO_THREE_DIGITS,))
_O200K = PreRule(splits=(_by_case(f"{_CONTRACTIONS}?", r"\p{N}{1,3}"),))

PRE_RULES: dict[str, PreRule] = {
    # Files from before the field existed are GPT-2's kind; transformers reads them so too.
    "": _GPT2,
    "default": _GPT2,
    "gpt-2": _GPT2,
    "gpt2": _GPT2,
    "phi-2": _GPT2,
    "olmo": _GPT2,
    "mpt": _GPT2,
    "smollm": _DIGITS_THEN_GPT2,
    "starcoder": _DIGITS_THEN_GPT2,
    "refact": _DIGITS_THEN_GPT2,
    "command-r": PreRule(splits=(r"\p{N}",), gpt2=True, nfc=True),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "dbrx": _CL100K,
    "smaug-bpe": _CL100K,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "stablelm2": PreRule(splits=(_SINGLE_DIGITS,)),
    "qwen35": PreRule(
        splits=(
            rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
            r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
        nfc=True,
    ),
    "falcon": PreRule(splits=(r"[\p{P}\$\+<=>\^~\|`]+", _GPT2_PIECES, r"[0-9]{3}")),
    "falcon3": _LLAMA3,
    "lfm2": _LLAMA3,
    "codeshell": _DIGITS_THEN_GPT2,
    "jais": _GPT2,
    "granite-docling": _GPT2,
    "chatglm-bpe": _CL100K,
    "glm4": PreRule(splits=(_UP_TO_THREE_DIGITS,), ignore_merges=True),
    "gpt-4o": _O200K,
    "llama4": _O200K,
    "tekken": PreRule(splits=(_by_case("", r"\p{N}"),), ignore_merges=True, add_bos=True),
    "seed-coder": PreRule(
        splits=(rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",)
    ),
    "deepseek-llm": PreRule(
        splits=(
            r"[\r\n]",
            rf"\s?[{_DEEPSEEK_LETTERS}]+",
            r"\s?[!-/:-~！-／：-～‘-‟\u3000-。]+",
            r"\s+$",
            _CHINESE_AND_KOREAN,
            r"\p{N}+",
        )
    ),
    "deepseek-coder": PreRule(splits=(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CHINESE_AND_KOREAN, r"\p{N}")),
    "deepseek-v3": PreRule(
        splits=(
            r"\p{N}{1,3}",
            r"[一-龥぀-ゟ゠-ヿ]+",
            rf"{_ASCII_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
            r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        )
    ),
}

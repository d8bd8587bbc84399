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
_UP_TO_THREE_DIGITS = rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}{{1,3}}|{_TAIL}"
_SINGLE_DIGITS = rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}|{_TAIL}"
_ASCII_PUNCTUATION = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
_CHINESE_AND_KOREAN = r"[一-龥ࠀ-一가-퟿]+"


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

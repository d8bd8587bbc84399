"""How text is cut before byte-level BPE, by the name a GGUF file gives the rule (``tokenizer.ggml.pre``).

A GGUF file names the rule but does not contain it. Each rule here is the one in the tokenizer.json of the models that
the name stands for; a name that is not here is refused, because a guessed rule gives wrong ids in silence. Left out on
purpose: names of encoders whose texts need more around them than BOS (``roberta-bpe``, ``modern-bert``, the ``jina``
ones), and those whose tokens are characters and no bytes (``gemma4``, ``sarvam-moe``, ``whitespace``).
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers

from tidemill.text import cutting_expressions as cut

__all__ = ["PRE_RULES", "PreRule"]


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
_NEOX = PreRule(gpt2=True, nfc=True)
_DIGITS_THEN_GPT2 = PreRule(splits=(cut.DIGIT,), gpt2=True)
_LLAMA3 = PreRule(splits=(cut.UP_TO_THREE_DIGITS,), ignore_merges=True, add_bos=True)
_QWEN2 = PreRule(splits=(cut.SINGLE_DIGITS,), nfc=True)
_SINGLE_DIGITS = PreRule(splits=(cut.SINGLE_DIGITS,))
_CL100K = PreRule(splits=(cut.UP_TO_THREE_DIGITS,))
_GLM4 = PreRule(splits=(cut.UP_TO_THREE_DIGITS,), ignore_merges=True)
_O200K = PreRule(splits=(cut.CASED_WORDS,))
_BLOOM = PreRule(splits=(cut.BLOOM_WORDS,))
_DEEPSEEK_V3 = PreRule(splits=(r"\p{N}{1,3}", cut.CHINESE_AND_JAPANESE, cut.WORDS_AND_SIGNS))
_TINY_AYA = PreRule(splits=(*cut.THREES_BEFORE_A_BOUNDARY, cut.CASED_WORDS))

PRE_RULES: dict[str, PreRule] = {
    # Files from before the field existed are GPT-2's kind; transformers reads them so too.
    "": _GPT2,
    "default": _GPT2,
    "gpt-2": _GPT2,
    "gpt2": _GPT2,
    "phi-2": _GPT2,
    "jais": _GPT2,
    "granite-docling": _GPT2,
    "gigachat": _GPT2,
    "a.x-4.0": _GPT2,
    "mellum": _GPT2,
    "exaone4": _GPT2,
    "trillion": _GPT2,
    "olmo": _NEOX,
    "mpt": _NEOX,
    "smollm": _DIGITS_THEN_GPT2,
    "starcoder": _DIGITS_THEN_GPT2,
    "refact": _DIGITS_THEN_GPT2,
    "codeshell": _DIGITS_THEN_GPT2,
    "exaone": _DIGITS_THEN_GPT2,
    "minerva-7b": _DIGITS_THEN_GPT2,
    "mellum2": _DIGITS_THEN_GPT2,
    "command-r": PreRule(splits=(cut.DIGIT,), gpt2=True, nfc=True),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,
    "falcon-h1": _LLAMA3,
    "pixtral": _LLAMA3,
    "midm-2.0": _LLAMA3,
    "lfm2": _LLAMA3,
    "dbrx": _CL100K,
    "smaug-bpe": _CL100K,
    "chatglm-bpe": _CL100K,
    "glm4": _GLM4,
    "glm5": _GLM4,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "megrez": _QWEN2,
    "kormo": _QWEN2,
    "f2llmv2": _QWEN2,
    "hunyuan": _QWEN2,
    "stablelm2": _QWEN2,
    "grok-2": _SINGLE_DIGITS,
    "solar-open": _SINGLE_DIGITS,
    "bailingmoe": _SINGLE_DIGITS,
    "bailingmoe2": _SINGLE_DIGITS,
    "llada-moe": _SINGLE_DIGITS,
    "laguna": PreRule(splits=(cut.LINES, cut.SINGLE_DIGITS)),
    "ufakzeka": PreRule(splits=(cut.SINGLE_DIGITS_NO_CONTRACTIONS,)),
    "qwen35": PreRule(splits=(cut.LETTERS_AND_MARKS,), nfc=True),
    "k2-horizon": PreRule(splits=(cut.JOINED_SCRIPTS,)),
    "minicpm5": PreRule(splits=(r"\p{N}{1,3}", cut.WHOLE_NUMBERS), ignore_merges=True),
    "jais-2": PreRule(splits=(cut.HALVING_SPACES,)),
    "seed-coder": PreRule(splits=(cut.SEED_CODER,)),
    "exaone-moe": PreRule(splits=(cut.EXAONE_MOE,)),
    "gpt-4o": _O200K,
    "llama4": _O200K,
    "kanana2": _O200K,
    "talkie": _O200K,
    "minimax-m2": _O200K,
    "tekken": PreRule(splits=(cut.CASED_WORDS_OF_TEKKEN,), ignore_merges=True, add_bos=True),
    "kimi-k2": PreRule(splits=(cut.CASED_WORDS_NO_HAN,), ignore_merges=True),
    "tiny_aya": _TINY_AYA,
    "cohere2moe": _TINY_AYA,
    "youtu": PreRule(splits=(cut.YOUTU_RUNS, cut.CASED_WORDS_SINGLE_DIGITS), ignore_merges=True),
    "bloom": _BLOOM,
    "gpt3-finnish": _BLOOM,
    "poro-chat": _BLOOM,
    "viking": PreRule(splits=(cut.BLOOM_WORDS, cut.DIGIT)),
    "falcon": PreRule(splits=(cut.FALCON_SIGNS, cut.GPT2_PIECES, r"[0-9]{3}")),
    "chameleon": PreRule(splits=cut.CHAMELEON, gpt2=True, add_bos=True),
    "superbpe": PreRule(splits=(cut.NUMBER_RUNS, *cut.DECIMAL_THREES)),
    "afmoe": PreRule(splits=(cut.NUMBER_RUNS, cut.THREES_FROM_THE_RIGHT, cut.ASIAN_RUNS, cut.WORDS_AND_SIGNS)),
    "deepseek-llm": PreRule(splits=cut.DEEPSEEK_LLM),
    "deepseek-coder": PreRule(splits=cut.CODER_LETTERS),
    "deepseek-v3": _DEEPSEEK_V3,
    "hunyuan-dense": _DEEPSEEK_V3,
    "joyai-llm": _DEEPSEEK_V3,
    "hy_v4": _DEEPSEEK_V3,
    "spark2_5": PreRule(splits=(r"\p{N}{1,3}", cut.CHINESE_AND_JAPANESE, cut.SPARK, cut.DIGIT)),
}

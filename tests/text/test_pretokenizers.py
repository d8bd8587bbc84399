"""Each named rule cuts where the regex library cuts by the expressions that the models publish."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from tests.text.tiny_text import golden
from tidemill.text.pretokenizers import PRE_RULES

GOLDEN = golden("rules.json")
SAME = {
    "gpt-2": ["", "default", "gpt2", "phi-2", "jais", "granite-docling", "gigachat", "a.x-4.0", "mellum", "exaone4"],
    "exaone": ["smollm", "starcoder", "refact", "codeshell", "minerva-7b", "mellum2", "command-r"],
    "llama-bpe": ["llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "dbrx", "smaug-bpe"],
    "qwen2": ["deepseek-r1-qwen", "megrez", "kormo", "f2llmv2", "hunyuan"],
    "bailingmoe": ["bailingmoe2", "llada-moe"],
    "gpt-4o": ["llama4", "kanana2", "talkie"],
    "tiny_aya": ["cohere2moe"],
    "bloom": ["gpt3-finnish", "poro-chat"],
    "deepseek-v3": ["hunyuan-dense", "joyai-llm", "hy_v4"],
}
SAME["gpt-2"] += ["trillion", "olmo", "mpt"]
SAME["llama-bpe"] += ["chatglm-bpe", "glm4", "glm5"]
# Compared with llama.cpp alone, in test_tokenizer.py.
OTHERS = ["falcon", "deepseek-llm", "deepseek-coder"]
# The words of regex leave out ½ and ², those of the models' own library do not; \b differs behind them.
NUMBERS_THAT_ARE_NO_DIGITS = "½²"


def ends(steps: Any, text: str) -> list[int]:
    return [end for _, (_, end) in steps.pre_tokenize_str(text)]


def published(rule: str) -> pre_tokenizers.PreTokenizer:
    """The expressions as the models have them, in the models' own library."""
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(e), "isolated") for e in GOLDEN["rules"][rule]])


@pytest.mark.parametrize("rule", GOLDEN["ends"])
def test_cuts_are_those_of_the_regex_library(rule: str) -> None:
    steps = PRE_RULES[rule].pre_tokenizer()
    for text, expected in zip(GOLDEN["texts"], GOLDEN["ends"][rule], strict=True):
        if rule == "tiny_aya" and any(sign in text for sign in NUMBERS_THAT_ARE_NO_DIGITS):
            continue
        assert ends(steps, text) == expected, text


def test_every_name_is_compared_with_something() -> None:
    for rule, names in SAME.items():
        for name in names:
            assert PRE_RULES[name].splits == PRE_RULES[rule].splits
            assert PRE_RULES[name].gpt2 == PRE_RULES[rule].gpt2
    assert set(PRE_RULES) == {*GOLDEN["ends"], *OTHERS, *(name for names in SAME.values() for name in names)}


@pytest.mark.parametrize("rule", ["superbpe", "afmoe", "tiny_aya"])
@given(text=st.text(st.sampled_from("123456789٣½²aA _.-\n\u0301世"), max_size=40))
@settings(max_examples=300, deadline=None)
def test_groups_of_digits_are_cut_as_published_but_in_one_pass(rule: str, text: str) -> None:
    assert ends(PRE_RULES[rule].pre_tokenizer(), text) == ends(published(rule), text)


@pytest.mark.parametrize("rule", sorted(PRE_RULES))
@pytest.mark.parametrize(
    "text",
    ["1" * 80_000 + "a", " " * 20_000 + "\n a", "a" * 20_000, "aA'" * 7_000, "e\u0301" * 10_000, "世A" * 10_000],
    ids=["digits", "spaces", "letters", "case", "marks", "scripts"],
)
def test_no_rule_takes_long_over_one_long_word(rule: str, text: str) -> None:
    steps = PRE_RULES[rule].pre_tokenizer()
    start = time.process_time()
    assert ends(steps, text)[-1] == len(text)
    assert time.process_time() - start < 1


def test_flags_that_the_models_have() -> None:
    def names(flag: str) -> set[str]:
        return {name for name, rule in PRE_RULES.items() if getattr(rule, flag)}

    llama3 = {"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"}
    assert names("add_bos") == {*llama3, "tekken", "chameleon"}
    assert names("ignore_merges") == {*llama3, "tekken", "glm4", "glm5", "minicpm5", "youtu", "kimi-k2"}
    composing = {"qwen2", "deepseek-r1-qwen", "megrez", "kormo", "f2llmv2", "hunyuan", "stablelm2", "qwen35"}
    assert names("nfc") == {*composing, "command-r", "olmo", "mpt"}

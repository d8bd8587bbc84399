"""Grammars over a real vocabulary: random walks within the masks end in texts of the grammar, and in no others."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from tests.text.json_schemas import SUPPORTED, UNSUPPORTED, random_schemas
from tidemill.core.config import ModelConfig
from tidemill.core.errors import InvalidRequest
from tidemill.core.grammar import MAX_GRAMMAR_CHARACTERS, Grammar
from tidemill.core.mask import allows, mask_bytes
from tidemill.models.loading import load_model
from tidemill.text.grammars import KEPT_GRAMMARS, Grammars, GrammarState
from tidemill.text.tokenizer import Tokenizer, build_tokenizer

ENDS = (0, 2)
"""SmolLM2's ``<|endoftext|>`` and ``<|im_end|>``."""
PATIENCE = 60
"""Tokens after which a walk takes the shortest way out that it sees."""


class Walker:
    """Draws tokens from masks as a model without any sense would, and closes what is open before long."""

    def __init__(self, grammars: Grammars, tokenizer: Tokenizer, vocab_size: int) -> None:
        self.grammars = grammars
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self._closing = [t for t in range(vocab_size) if tokenizer.token_bytes(t)[:1] in (b'"', b"}", b"]", b")")]

    def walk(self, grammar: Grammar, seed: int, most: int = 400) -> str | None:
        """A text of the grammar; None if there is no end after so many tokens."""
        state = self.grammars.state(grammar)
        chance = random.Random(seed)
        tokens: list[int] = []
        while len(tokens) < most:
            token = self._next(state.mask(), chance, hurried=len(tokens) > PATIENCE)
            if token in ENDS:
                return self.text(tokens)
            assert state.consume([token]) == 1, "the mask allows a token that the grammar does not take"
            tokens.append(token)
            if state.over:
                return self.text(tokens)
        return None

    def text(self, tokens: list[int]) -> str:
        return b"".join(map(self.tokenizer.token_bytes, tokens)).decode()

    def _next(self, mask: bytes, chance: random.Random, *, hurried: bool) -> int:
        if allows(mask, ENDS[0]) and (hurried or chance.random() < 0.3):
            return ENDS[0]
        if hurried:
            ways_out = [token for token in self._closing if allows(mask, token)]
            if ways_out:
                return min(ways_out, key=lambda token: len(self.tokenizer.token_bytes(token)))
        allowed = np.flatnonzero(np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little"))
        assert len(allowed), "the mask leaves nothing"
        return int(allowed[chance.randrange(len(allowed))])


@pytest.fixture(scope="module")
def walker(smollm2_path: Path) -> Walker:
    model = load_model(ModelConfig(path=str(smollm2_path)))
    tokenizer = build_tokenizer(model.text)
    return Walker(Grammars(lambda: tokenizer, model.vocab_size, model.end_token_ids), tokenizer, model.vocab_size)


def valid(text: str, schema: Any) -> bool:
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    return bool(validator.is_valid(json.loads(text)))


@pytest.mark.parametrize("schema", SUPPORTED, ids=lambda schema: json.dumps(schema)[:60])
def test_what_a_schema_lets_through_is_valid_to_an_independent_validator(walker: Walker, schema: Any) -> None:
    texts = [walker.walk(Grammar.json_schema(schema), seed) for seed in range(4)]
    ended = [text for text in texts if text is not None]
    assert ended, "no walk came to an end"
    assert [text for text in ended if not valid(text, schema)] == []


def test_three_hundred_schemas_put_together_at_random(walker: Walker) -> None:
    ended = 0
    for seed, schema in enumerate(random_schemas(300)):
        text = walker.walk(Grammar.json_schema(schema), seed)
        if text is not None:
            ended += 1
            assert valid(text, schema), (schema, text)
    assert ended > 270


@pytest.mark.parametrize(("schema", "keyword"), UNSUPPORTED, ids=lambda value: str(value)[:50])
def test_a_keyword_that_cannot_be_kept_is_refused_by_its_name(walker: Walker, schema: Any, keyword: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(keyword)) as refused:
        walker.grammars.state(Grammar.json_schema(schema, name="response_format.json_schema.schema"))
    assert refused.value.param == "response_format.json_schema.schema"
    assert len(refused.value.message) < 300
    assert "\n" not in refused.value.message


@pytest.mark.parametrize(
    ("grammar", "right"),
    [
        (Grammar.json_object(), lambda text: isinstance(json.loads(text), dict)),
        (
            Grammar.choice(["yes", 'a "quoted" one', "ümlaut\n", "no"]),
            {"yes", 'a "quoted" one', "ümlaut\n", "no"}.__contains__,
        ),
        (Grammar.regex(r"\d{3}-[a-f]{2}/x?"), lambda text: re.fullmatch(r"[0-9]{3}-[a-f]{2}/x?", text)),
        (Grammar.regex(r"(a|b)+\s\w"), lambda text: re.fullmatch(r"[ab]+[ \t\n\r\f\v][0-9a-zA-Z_]", text)),
        (
            Grammar.lark('start: "x" | "(" start ")"'),
            lambda text: re.fullmatch(r"\(*x\)*", text) and text.count("(") == text.count(")"),
        ),
        (
            Grammar.lark('root ::= "a" root "b" | "c"'),
            lambda text: re.fullmatch(r"a*cb*", text) and text.count("a") == text.count("b"),
        ),
    ],
    ids=lambda value: value.kind if isinstance(value, Grammar) else "",
)
def test_each_kind_gives_texts_of_its_own(walker: Walker, grammar: Grammar, right: Callable[[str], object]) -> None:
    texts = [walker.walk(grammar, seed, most=4000) for seed in range(12)]
    ended = [text for text in texts if text is not None]
    assert len(ended) > 3
    assert [text for text in ended if not right(text)] == []


def test_keys_come_in_the_order_of_the_schema(walker: Walker) -> None:
    """As whoever fills a form that builds on itself wrote them: reasons before the verdict."""
    names = ["z", "東", "a", "m"]
    schema = {
        "type": "object",
        "properties": {name: {"type": "integer", "minimum": 0, "maximum": 9} for name in names},
        "required": ["a", "z"],
        "additionalProperties": False,
    }
    kept = set()
    for seed in range(30):
        text = walker.walk(Grammar.json_schema(schema), seed)
        assert text is not None
        keys = list(json.loads(text))
        assert keys == [name for name in names if name in keys]
        assert {"a", "z"} <= set(keys)
        kept.add(tuple(keys))
    assert len(kept) == 4, "optional keys are there and not there"


def test_white_space_between_marks_is_bounded(walker: Walker) -> None:
    state = walker.grammars.state(Grammar.json_object())
    spaces = walker.tokenizer.encode(" ", add_bos=False)
    assert state.consume(walker.tokenizer.encode("{", add_bos=False)) == 1
    taken = sum(state.consume(spaces) for _ in range(200))
    assert 8 <= taken <= 24


def test_forced_tokens_are_what_the_grammar_leaves(walker: Walker) -> None:
    state = walker.grammars.state(Grammar.choice(["the tide is coming in", "the tide is going out"]))
    forced = state.forced()
    assert walker.text(forced).startswith("the tide is")
    assert state.consume(forced) == len(forced)
    assert walker.grammars.state(Grammar.json_object()).forced() == walker.tokenizer.encode("{", add_bos=False)[:0]


def test_going_back_is_as_if_it_had_not_been_taken(walker: Walker) -> None:
    state = walker.grammars.state(Grammar.regex("(ab|cd)*e"))
    tokens = walker.tokenizer.encode("abcdab", add_bos=False)
    before = state.mask()
    assert state.consume(tokens) == len(tokens)
    state.go_back(len(tokens))
    assert state.mask() == before
    assert state.consume(walker.tokenizer.encode("x", add_bos=False)) == 0
    assert state.mask() == before


def test_masks_have_the_models_size_and_states_are_apart(walker: Walker) -> None:
    grammar = Grammar.regex("ab*")
    first, second = walker.grammars.state(grammar), walker.grammars.state(grammar)
    assert len(first.mask()) == mask_bytes(walker.vocab_size)
    first.consume(walker.tokenizer.encode("a", add_bos=False))
    assert first.mask() != second.mask()


def hostile() -> dict[str, Grammar]:
    deep: Any = {"type": "string"}
    for _ in range(300):
        deep = {"type": "array", "items": deep}
    return {
        "deep schema": Grammar.json_schema(deep),
        "circle of references": Grammar.json_schema({"$ref": "#"}),
        "many properties": Grammar.json_schema(
            {"properties": {f"k{i}": {"pattern": "^[a-z]{1,99}$"} for i in range(2000)}}
        ),
        "counts": Grammar.json_schema(
            {"type": "array", "minItems": 10**6, "items": {"type": "string", "minLength": 10**6}}
        ),
        "regex counts": Grammar.regex("((a{1,1000}){1,1000}){1,1000}"),
        "regex states": Grammar.regex("[ab]*a[ab]{500}"),
        "regex depth": Grammar.regex("(" * 50_000 + "a" + ")" * 50_000),
        "left recursion": Grammar.lark('start: start start | start | "a"'),
        "far away": Grammar.json_schema({"$ref": "http://127.0.0.1:9/schema"}),
        "file": Grammar.json_schema({"$ref": "file:///etc/passwd"}),
    }


@pytest.mark.parametrize("name", hostile())
def test_hostile_grammars_are_refused_or_walked_within_seconds(walker: Walker, name: str) -> None:
    begin = time.process_time()
    try:
        walker.walk(hostile()[name], seed=1, most=30)
    except InvalidRequest as refusal:
        assert len(refusal.message) < 400  # noqa: PT017
    assert time.process_time() - begin < 10


@pytest.mark.parametrize(
    ("grammar", "says"),
    [
        (Grammar.regex("(", name="guided_regex"), "guided_regex"),
        (Grammar.regex("x" * (MAX_GRAMMAR_CHARACTERS + 1), name="r"), "r has 262145 characters; at most 262144"),
        (Grammar.regex("", name="r"), "r is empty"),
        (Grammar.choice([], name="c"), "c must be a list of non-empty texts"),
        (Grammar.lark("nonsense", name="g"), "g: "),
        (Grammar.json_schema({"type": "strnig"}, name="s"), "s: Invalid type: strnig"),
    ],
    ids=str,
)
def test_what_is_no_grammar_is_refused_in_a_line_that_names_it(walker: Walker, grammar: Grammar, says: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(says)) as refused:
        walker.grammars.state(grammar)
    assert refused.value.param == says.partition(":")[0].partition(" ")[0]


def test_a_model_without_an_end_token_is_told_so(walker: Walker) -> None:
    grammars = Grammars(lambda: walker.tokenizer, walker.vocab_size, ())
    with pytest.raises(InvalidRequest, match="no end token"):
        grammars.state(Grammar.json_object())


def test_the_least_recently_used_grammar_makes_room(walker: Walker) -> None:
    grammars = Grammars(lambda: walker.tokenizer, walker.vocab_size, ENDS)
    asked = [Grammar.choice([f"c{i}"]) for i in range(KEPT_GRAMMARS + 1)]
    for grammar in asked[:-1]:
        grammars.state(grammar)
    grammars.state(asked[0])
    grammars.state(asked[-1])
    assert [grammars.ready(grammar) for grammar in asked[:3]] == [True, False, True]
    assert isinstance(grammars.state(asked[1]), GrammarState)

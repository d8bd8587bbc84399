"""Case 59: prompts have exactly the length asked for, and shared parts are the same tokens."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Library

from tests.text.tiny_text import json_source, sentencepiece_source
from tidemill.bench.load.prompt_options import PromptOptions
from tidemill.bench.load.prompts import IdPrompts, TextPrompts, WordPrompts
from tidemill.bench.traces.row import Segment
from tidemill.core.errors import ConfigError
from tidemill.text.chat import build_chat_encoder
from tidemill.text.tokenizer import Tokenizer, build_tokenizer

LENGTHS = (1, 16, 128, 4000)
TOKENIZERS = {
    "bytes": build_tokenizer(json_source()),
    "llama2": build_tokenizer(sentencepiece_source("llama2")),
    "gemma": build_tokenizer(sentencepiece_source("gemma")),
}
HALF = (Segment("system", 8),)


def test_ids_have_their_length_and_share_what_they_should() -> None:
    for seed, length in itertools.product(range(25), LENGTHS):
        prompts = IdPrompts(seed=seed)
        made = [prompts.make((Segment("s", length // 2),), length, str(own)) for own in range(4)]
        assert [len(prompt.ids or ()) for prompt in made] == [length] * 4
        assert len({tuple((prompt.ids or ())[: length // 2]) for prompt in made}) == 1
        if length > 2:
            assert len({tuple((prompt.ids or ())[length // 2 :]) for prompt in made}) == 4
        assert all(1000 <= token < 30000 for prompt in made for token in prompt.ids or ())


def test_equal_ids_are_equal_tokens_and_a_shorter_piece_is_a_beginning() -> None:
    """Case 70: ids that differ only above 32 bits are different tokens; the same id with a short last block is its
    beginning, whichever came first."""
    prompts = IdPrompts()

    def tokens(*pieces: Segment) -> list[int]:
        return list(prompts.make(pieces, sum(piece.tokens for piece in pieces), "x").ids or ())

    assert tokens(Segment("5", 30)) == tokens(Segment("5", 512))[:30]
    assert tokens(Segment("6", 30)) == tokens(Segment("6", 512))[:30]
    assert tokens(Segment("5", 512)) != tokens(Segment(str(5 + 2**32), 512))
    assert tokens(Segment("a", 64), Segment("5", 64))[64:] == tokens(Segment("b", 64), Segment("5", 64))[64:]


def test_a_prefix_longer_than_the_prompt_is_cut() -> None:
    prompts = IdPrompts()
    whole = prompts.make((Segment("a", 10), Segment("b", 10)), 20, "x")
    assert prompts.make((Segment("a", 10), Segment("b", 10)), 13, "y").ids == (whole.ids or [])[:13]


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_text_is_cut_into_as_many_tokens_as_asked_for(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]
    prompts = TextPrompts(tokenizer)
    for seed, length in itertools.product(range(10), (prompts.overhead + 1, 16, 128, 4000)):
        prompt = TextPrompts(tokenizer, seed=seed).make(HALF, length, "own")
        assert (len(tokenizer.encode(prompt.text or "")), prompt.tokens, prompt.exact) == (length, length, True)


def test_the_library_itself_counts_the_same() -> None:
    library = Library.from_str((json_source().tokenizer_json or b"").decode())
    for length in (16, 128, 1000):
        prompt = TextPrompts(TOKENIZERS["bytes"]).make(HALF, length, "own")
        assert len(library.encode(prompt.text or "").ids) == length


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_shared_text_is_the_same_tokens(kind: str) -> None:
    tokenizer, prompts = TOKENIZERS[kind], TextPrompts(TOKENIZERS[kind])
    one, other = (tokenizer.encode(prompts.make((Segment("s", 64),), 128, own).text or "") for own in "ab")
    same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=True)))
    assert 64 <= same - prompts.overhead <= 66  # an own token may be the same by chance
    assert one != other


def test_what_a_chat_template_adds_is_counted() -> None:
    template = "{% for m in messages %}<|begin|>{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
    source = json_source(chat_templates={"default": template})
    tokenizer = build_tokenizer(source)
    chat = build_chat_encoder(source, tokenizer)
    assert chat.problem is None

    def around(text: str) -> list[int]:
        return chat.encode([{"role": "user", "content": text}])

    prompts = TextPrompts(tokenizer, around=around)
    assert prompts.overhead > 10
    for length in (prompts.overhead + 1, 64, 500):
        prompt = prompts.make((), length, "x")
        assert (len(around(prompt.text or "")), prompt.tokens, prompt.exact) == (length, length, True)


def test_a_length_that_cannot_be_is_said_and_counted() -> None:
    """There is no text of no tokens: what is asked for within the template's own tokens gets one more."""
    prompts = TextPrompts(TOKENIZERS["llama2"])
    prompt = prompts.make((), prompts.overhead, "x")
    assert (prompt.tokens, prompt.exact) == (prompts.overhead + 1, False)


@pytest.mark.model
def test_text_of_exact_length_for_the_default_model(smollm2_path: Path) -> None:
    for endpoint in ("completions", "chat"):
        prompts = PromptOptions(tokenizer=str(smollm2_path)).made(endpoint, seed=3)  # type: ignore[arg-type]
        for length in (64, 700, 4000):
            prompt = prompts.make((Segment("s", 32),), length, "x")
            assert (prompt.tokens, prompt.exact) == (length, True)


def test_words_are_an_estimate_and_say_so() -> None:
    prompt = WordPrompts().make((), 20, "x")
    assert (len((prompt.text or "").split()), prompt.exact) == (20, False)


@pytest.mark.parametrize(
    ("fields", "endpoint", "words"),
    [
        ({"prompts": "ids"}, "chat", "chats take no token ids"),
        ({"prompts": "text"}, "completions", "needs a tokenizer"),
        ({"token_ids": "7"}, "completions", "token_ids"),
        ({"token_ids": "9..5"}, "completions", "token_ids"),
        ({"token_ids": "a..b"}, "completions", "token_ids"),
    ],
)
def test_prompts_that_cannot_be(fields: dict[str, str], endpoint: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        PromptOptions(**fields).made(endpoint, seed=0)  # type: ignore[arg-type]


def test_without_a_tokenizer_completions_get_ids_and_chats_get_words() -> None:
    assert isinstance(PromptOptions().made("completions", seed=0), IdPrompts)
    assert isinstance(PromptOptions().made("chat", seed=0), WordPrompts)


def test_a_tiny_vocabulary_has_its_own_ids() -> None:
    prompt = PromptOptions().ids(seed=0, vocab_size=64).make((), 500, "x")
    assert set(prompt.ids or ()) <= set(range(8, 64))


def test_a_vocabulary_without_words_is_refused() -> None:
    class Wordless(Tokenizer):
        def token_bytes(self, token: int) -> bytes:  # noqa: ARG002 (of a Tokenizer)
            return b"x"

    wordless = Wordless(TOKENIZERS["bytes"]._codec, bos_id=None, before=(), after=())
    with pytest.raises(ConfigError, match="no words"):
        TextPrompts(wordless)

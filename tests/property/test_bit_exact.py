"""The answer does not depend on the neighbours: tokens and log-probabilities are equal, bit for bit, however a request
is run. Hypothesis picks requests and ways to run them; the yardstick is the request alone, one token a step."""

from __future__ import annotations

import random
from collections.abc import Sequence, Set
from dataclasses import replace
from functools import cache
from typing import Literal

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from tests.support.drafts import draft_proposer
from tests.support.guesses import Guessing
from tests.support.isas import EVERY_ISA
from tests.support.tiny import VARIANTS, VOCAB, Answer, Rig, TinyModel, request, run, tiny_adapters, tiny_model
from tidemill.core.config import ExecutorConfig
from tidemill.core.tokens import EngineStats, TokenRequest
from tidemill.engine.proposer import Proposer
from tidemill.graph.formats import WeightFormat
from tidemill.models.registry import ARCHITECTURES

FORMATS = list(WeightFormat)
KV_FORMATS: list[Literal["auto", "q8_0", "q4_0"]] = ["auto", "q8_0", "q4_0"]
CHUNKS = [1, 7, 16, 64, 512]
SAMPLINGS: list[dict[str, object]] = [
    {"temperature": 0.0},
    {"temperature": 0.0, "repetition_penalty": 1.3},
    {"temperature": 1.0, "seed": 7},
    {"temperature": 0.7, "seed": 2**40 + 1, "top_k": 20, "top_p": 0.9},
    {"temperature": 1.3, "seed": -5, "min_p": 0.05, "presence_penalty": 0.7, "frequency_penalty": 0.3},
    {"temperature": 1.0, "seed": 3, "n": 3, "logit_bias": {5: 4.0, 9: -100.0}},
    {"temperature": 0.8, "seed": 9, "allowed_token_ids": tuple(range(0, 64, 3)), "min_tokens": 1},
]


@cache
def model(format_: WeightFormat, architecture: str = "llama") -> TinyModel:
    """A model of one of the architectures in VARIANTS."""
    return tiny_model(format_, **VARIANTS[architecture])


numbers = st.integers(0, 2**16)
lengths = st.one_of(st.integers(1, 20), st.sampled_from([15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 200]))


def prompts(lengths: st.SearchStrategy[int]) -> st.SearchStrategy[list[int]]:
    return st.builds(
        lambda length, seed: [1 + (seed * 31 + i * i * 7 + i * seed) % (VOCAB - 1) for i in range(length)],
        length=lengths,
        seed=numbers,
    )


class PartlyRight:
    """Guesses of which about a half is what the answer says, once it was told answers; before, at random. Of all
    sequences the same."""

    def __init__(self, seed: int) -> None:
        self._numbers = random.Random(seed)
        self.known: dict[tuple[int, ...], list[int]] = {}

    def propose(self, tokens: Sequence[int], limit: int) -> Sequence[int]:
        said = next((text for text in self.known.values() if text[: len(tokens)] == list(tokens)), [])
        right = said[len(tokens) : len(tokens) + self._numbers.randrange(limit + 1)]
        return [t if self._numbers.random() < 0.7 else self._numbers.randrange(VOCAB) for t in right] or [tokens[-1]]


def learn(rig: Rig, answers: dict[tuple[str, int], Answer], requests: list[TokenRequest]) -> None:
    """Tell the rig's proposer what was answered."""
    prompts = {one.request_id: list(one.prompt) for one in requests}
    guesses = [one.guess for one in rig.proposers if isinstance(one, Guessing)]
    for guess in guesses:
        assert isinstance(guess, PartlyRight)
        for (name, choice), answer in answers.items():
            guess.known[len(guess.known), choice] = [*prompts[name], *answer.tokens]


@st.composite
def proposers(draw: st.DrawFn, target: TinyModel, number: int) -> list[Proposer]:
    """Who guesses, besides those that settings name: who is partly right, and a draft model in a KV format of its own,
    at times with blocks for few sequences. It is the target itself, which is often right, or another."""
    made: list[Proposer] = []
    if number & 1:
        made.append(Guessing(PartlyRight(draw(st.integers(0, 99)))))
    if number & 2:
        drafting = draw(st.sampled_from([target, model(WeightFormat.Q8_0, "gemma3_text")]))
        executor = ExecutorConfig(threads=1, kv_format=draw(st.sampled_from(KV_FORMATS)))
        blocks = draw(st.sampled_from([12, 256]))
        made.append(draft_proposer(drafting, vocab_size=VOCAB, num_blocks=blocks, executor=executor))
    return made


@st.composite
def batches(draw: st.DrawFn, growing: bool) -> list[TokenRequest]:
    """One request under test, first, and up to 16 neighbours, some of which begin alike; growing ones become many times
    their prompt."""
    count = draw(st.integers(3, 9) if growing else st.integers(1, 17))
    common = draw(prompts(lengths))
    return [
        request(
            f"r{index}",
            common[: draw(st.sampled_from([0, len(common) // 2, len(common)]))]
            + draw(prompts(st.integers(1, 20) if growing else lengths)),
            **draw(st.sampled_from(SAMPLINGS)),
            max_tokens=draw(st.integers(40, 80) if growing else st.integers(2, 24)),
        )
        for index in range(count)
    ]


@st.composite
def rigs(draw: st.DrawFn, requests: list[TokenRequest], growing: bool, everything: bool) -> Rig:
    """A way to run them. Growing requests start together in a pool for little more than the longest and preempt each
    other: most of their examples do (``pytest --hypothesis-show-statistics`` counts them). Everything: there are
    adapters, guesses and a prefix cache in each example."""
    block_size = draw(st.sampled_from([16, 32]))
    longest = max(len(one.prompt) + (one.sampling.max_tokens or 0) for one in requests)
    tokens = draw(st.sampled_from([longest, longest * 3 // 2, *([] if growing else [4096])]))
    chosen = model(draw(st.sampled_from(FORMATS)), draw(st.sampled_from(sorted(VARIANTS))))
    guessing = draw(st.sampled_from([1, 2, 3] if everything else [0, 0, 1, 2]))
    return Rig(
        model=chosen,
        adapters=tiny_adapters(chosen) if everything or draw(st.booleans()) else (),
        executor=ExecutorConfig(
            threads=draw(st.sampled_from([1, 2])),
            numerics=draw(st.sampled_from(["fast", "exact"])),
            kv_format=draw(st.sampled_from(KV_FORMATS)),
        ),
        block_size=block_size,
        num_blocks=-(-tokens // block_size),
        max_step_tokens=draw(st.sampled_from(CHUNKS[1:] if everything else CHUNKS)),
        max_running=draw(st.sampled_from([3, 64] if growing else [1, 3, 64])),
        itl_target=draw(st.sampled_from([0.0, 0.0, 0.001, 0.02])),
        prefix_cache=draw(st.sampled_from(["on"] if everything else ["on", "on", "off"])),
        policy=draw(st.sampled_from(["continuous", "continuous", "dynamic", "static-compacted", "static"])),
        row_variant=draw(st.sampled_from([0, 1, 2, 3, 4])),
        speculate=draw(st.sampled_from(["off", "ngram", "suffix", "ngram,suffix"])),
        speculate_length=draw(st.sampled_from(["adaptive", "fixed"])),
        proposers=draw(proposers(chosen, guessing)),
    )


def alone(rig: Rig, one: TokenRequest) -> dict[tuple[str, int], Answer]:
    """The request alone, in the plainest way."""
    plain = Rig(
        model=rig.model,
        executor=ExecutorConfig(threads=1, numerics=rig.executor.numerics, kv_format=rig.executor.kv_format),
        block_size=16,
        num_blocks=64,
        max_step_tokens=1,
        max_running=1,
        row_variant=1,
        adapters=rig.adapters if one.adapter else (),
    )
    loop = plain.make_loop()
    try:
        return run(loop, [one])
    finally:
        loop.close()


@pytest.mark.parametrize("requests_", ["everything", "growing", "any"])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(stagger=st.sampled_from([0, 1, 3]), data=st.data())
def test_answers_are_those_of_the_request_alone(requests_: str, stagger: int, data: st.DataObject) -> None:
    growing, everything = requests_ != "any", requests_ == "everything"
    requests = data.draw(batches(growing))
    rig = data.draw(rigs(requests, growing, everything))
    if rig.adapters:
        requests = [replace(one, adapter=data.draw(st.sampled_from(["", "a1", "a2", "a3"]))) for one in requests]
    loop = rig.make_loop()
    try:
        together = run(loop, requests, stagger=stagger)
        preempted = loop.stats().preemptions_total > 0
        learn(rig, together, requests)
        again = run(loop, requests[:3])
        stats = loop.stats()
    finally:
        loop.close()
    right = {kind for kind, count in stats.draft_accepted_tokens_total.items() if count}
    event(f"preempted: {preempted}")
    event(f"from the cache: {stats.prefix_hit_tokens_total > 0}")
    event(f"guessed: {sum(stats.draft_tokens_total.values()) > 0}")
    event(f"right: {sorted(right)}")
    event(f"adapters and whole numbers, preempted, from the cache, guessed right: {_all(rig, requests, stats, right)}")
    for one in requests[:3]:
        for key, answer in alone(rig, one).items():
            assert together[key] == again[key] == answer


def _all(rig: Rig, requests: Sequence[TokenRequest], stats: EngineStats, right: Set[str]) -> bool:
    """True if everything came together."""
    mixed = len({one.adapter for one in requests}) > 1 and rig.executor.kv_format != "auto"
    return mixed and stats.preemptions_total > 0 < stats.prefix_hit_tokens_total and bool(right)


@pytest.mark.parametrize("kv_format", KV_FORMATS)
@pytest.mark.parametrize("architecture", sorted(name for name, one in ARCHITECTURES.items() if not one.encoder))
def test_a_prompt_from_the_cache_gives_the_same(architecture: str, kv_format: Literal["auto", "q8_0", "q4_0"]) -> None:
    """Prompts that begin with those before them, each after the other, and then all of them again and at once; the
    tiny models' windows end within the shared part."""
    text = [1 + (11 * i + i * i) % 299 for i in range(160)]
    requests = [
        request(f"r{i}", [*text[: 37 * i], *range(1 + i, 9 + i)], **SAMPLINGS[i % len(SAMPLINGS)]) for i in range(5)
    ]
    executor = ExecutorConfig(threads=1, kv_format=kv_format)
    rig = Rig(model=model(WeightFormat.Q8_0, architecture), executor=executor, max_step_tokens=40)
    loop = rig.make_loop()
    answers = [{key: answer for one in requests for key, answer in run(loop, [one]).items()}, run(loop, requests)]
    hit = loop.stats().prefix_hit_tokens_total
    loop.close()
    cold = replace(rig, prefix_cache="off").make_loop()
    expected = {key: answer for one in requests for key, answer in run(cold, [one]).items()}
    assert cold.stats().prefix_hit_tokens_total == 0
    cold.close()
    assert answers == [expected, expected]
    assert hit > 500


@pytest.mark.parametrize("kv_format", KV_FORMATS)
@pytest.mark.parametrize("architecture", ["llama", "gemma3_text", "gpt_oss"])
def test_a_preempted_request_comes_back_the_same_in_each_kv_format(
    architecture: str, kv_format: Literal["auto", "q8_0", "q4_0"]
) -> None:
    preempted(model(WeightFormat.Q8_0, architecture), ExecutorConfig(threads=2, kv_format=kv_format))


@pytest.mark.parametrize("architecture", ["llama", "gemma3_text", "gpt_oss"])
@pytest.mark.parametrize("format_", FORMATS)
def test_a_preempted_request_comes_back_the_same(format_: WeightFormat, architecture: str) -> None:
    preempted(model(format_, architecture), ExecutorConfig(threads=1))


def preempted(one_model: TinyModel, executor: ExecutorConfig) -> None:
    """A pool for about one and a half requests: two long ones take turns, and each is preempted at least once."""
    requests = [
        request(f"r{index}", [3 + 5 * index + j % 40 for j in range(30)], max_tokens=150, **sampling)
        for index, sampling in enumerate([SAMPLINGS[1], SAMPLINGS[3]])
    ]
    small = Rig(model=one_model, executor=executor, num_blocks=17)
    loop = small.make_loop()
    together = run(loop, requests)
    assert loop.stats().preemptions_total >= 1
    loop.close()
    for one in requests:
        assert {(one.request_id, 0): together[one.request_id, 0]} == alone(small, one)


@pytest.mark.parametrize("architecture", sorted(name for name, one in ARCHITECTURES.items() if not one.encoder))
def test_every_architecture_keeps_it_among_adapters(architecture: str) -> None:
    """The same prompt with each of three adapters and with none, twice each, in chunks, in a pool for some of them,
    with blocks kept for who comes again: each as alone, and no two alike."""
    text = [1 + (11 * i + i * i) % 299 for i in range(36)]
    chosen = model(WeightFormat.Q8_0, architecture)
    requests = [
        replace(request(f"r{i}", text, **SAMPLINGS[i % 2], max_tokens=60), adapter=("", "a1", "a2", "a3")[i // 2])
        for i in range(8)
    ]
    rig = Rig(
        model=chosen,
        executor=ExecutorConfig(threads=2),
        max_step_tokens=24,
        num_blocks=12,
        adapters=tiny_adapters(chosen),
    )
    loop = rig.make_loop()
    together, again = run(loop, requests), run(loop, requests, stagger=1)
    assert loop.stats().preemptions_total or chosen.graph.kv_groups[0].window
    assert loop.stats().prefix_hit_tokens_total
    loop.close()
    assert together == again
    for one in requests[::2]:
        assert alone(rig, one) == {(one.request_id, 0): together[one.request_id, 0]}
    assert len({together[one.request_id, 0] for one in requests[::2]}) == 4


@pytest.mark.parametrize("architecture", sorted(name for name, one in ARCHITECTURES.items() if not one.encoder))
def test_every_architecture_keeps_it(architecture: str) -> None:
    """Eight requests in chunks of 40 tokens among each other, against each alone, a token a step."""
    requests = [
        request(f"r{i}", [1 + (7 * i + 3 * j) % 300 for j in range(13 * i + 1)], **SAMPLINGS[i % len(SAMPLINGS)])
        for i in range(8)
    ]
    rig = Rig(model=model(WeightFormat.Q8_0, architecture), executor=ExecutorConfig(threads=2), max_step_tokens=40)
    loop = rig.make_loop()
    together = run(loop, requests, stagger=1)
    loop.close()
    for one in requests[::3]:
        for key, answer in alone(rig, one).items():
            assert together[key] == answer


@pytest.mark.parametrize("kv_format", KV_FORMATS)
@pytest.mark.parametrize("isa", EVERY_ISA)
def test_each_instruction_set_keeps_it(isa: str, kv_format: str) -> None:
    requests = [
        request(f"r{i}", [1 + (7 * i + 3 * j) % 300 for j in range(9 * i + 1)], **SAMPLINGS[i % len(SAMPLINGS)])
        for i in range(12)
    ]
    config = ExecutorConfig(isa=isa, threads=2, kv_format=kv_format)  # type: ignore[arg-type]
    loop = Rig(model=model(WeightFormat.Q4_1), executor=config, max_step_tokens=40).make_loop()
    together = run(loop, requests, stagger=1)
    loop.close()
    for one in requests:
        loop = Rig(
            model=model(WeightFormat.Q4_1),
            executor=replace(config, threads=1),
            max_step_tokens=1,
        ).make_loop()
        for key, answer in run(loop, [one]).items():
            assert together[key] == answer
        loop.close()


def test_the_model_is_one_in_which_mistakes_show() -> None:
    """Different prompts give different answers, and tokens are varied: equality above is not that of constants."""
    tiny: TinyModel = model(WeightFormat.Q4_1)
    loop = Rig(model=tiny).make_loop()
    answers = run(loop, [request(f"r{i}", [i + 1, 5, 9, 40 + i], **SAMPLINGS[2]) for i in range(8)])
    loop.close()
    assert len({answer.tokens for answer in answers.values()}) == 8
    assert len({token for answer in answers.values() for token in answer.tokens}) > 40

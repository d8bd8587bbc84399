"""The draft model's prefix cache: what is not read twice, by whom it is shared and for how long.

The draft is the target itself, so each guess made from the right keys and values is right, and one made from others
shows.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.drafts import draft_proposer
from tests.support.tiny import VOCAB, Rig, request, run, tiny_adapters, tiny_model
from tidemill.core.clock import ManualClock
from tidemill.core.config import EngineConfig, ExecutorConfig, ModelConfig, SchedulerConfig
from tidemill.core.step import RowOptions, SequenceId, StepPlan
from tidemill.core.tokens import TokenRequest
from tidemill.engine.draft_model import DraftModelProposer
from tidemill.engine.factory import build_loop
from tidemill.engine.prefix import BlockKeys
from tidemill.engine.proposer import Asked
from tidemill.scheduling.kv.cache import BlockKey

TARGET = tiny_model()
PROMPT = [1 + 7 * i * i % 300 for i in range(100)]
"""Six blocks of 16 tokens and four tokens more."""


class Pair:
    """A target with its draft, which tells how many tokens of prompts it reads."""

    def __init__(self, *, target: dict[str, Any] | None = None, **draft: Any) -> None:
        self.draft: DraftModelProposer = draft_proposer(TARGET, vocab_size=VOCAB, **draft)
        self.space = self.draft._places._space
        self.loop = Rig(model=TARGET, proposers=[self.draft], **target or {}).make_loop()
        self.plans: list[StepPlan] = []
        submit = self.draft._executor.submit

        def noted(plan: StepPlan) -> None:
            self.plans.append(plan)
            submit(plan)

        self.draft._executor.submit = noted  # type: ignore[method-assign]

    def read(self, *requests: TokenRequest) -> int:
        """Run requests: how many tokens of their prompts the draft computed. Guesses are right, answers as without it,
        and no block is lost."""
        before = self.loop.stats()
        self.plans.clear()
        said = run(self.loop, list(requests))
        after = self.loop.stats()
        guessed = after.draft_tokens_total["draft"] - before.draft_tokens_total.get("draft", 0)
        right = after.draft_accepted_tokens_total["draft"] - before.draft_accepted_tokens_total.get("draft", 0)
        assert right == guessed > 0
        plain = Rig(model=TARGET, adapters=self._adapters).make_loop()
        assert said == run(plain, list(requests))
        plain.close()
        self.space.verify()
        assert self.space.pools[0].num_available == self.space.pools[0].num_blocks
        return self.prompt_tokens(len(requests[0].prompt))

    _adapters: Any = ()

    def prompt_tokens(self, num_prompt: int) -> int:
        """Tokens before that position in all plans."""
        rows = [row for plan in self.plans for row in plan.rows]
        return sum(max(0, min(row.start + len(row.tokens), num_prompt) - row.start) for row in rows)


def one(name: str, prompt: list[int] = PROMPT, **sampling: Any) -> TokenRequest:
    return request(name, prompt, **{"max_tokens": 20} | sampling)


def test_a_prompt_that_was_read_is_not_read_again_but_for_its_last_block() -> None:
    pair = Pair()
    assert [pair.read(one(name)) for name in "abc"] == [100, 4, 4]
    stats = pair.loop.stats()
    # It is first asked when the first token is there.
    assert (stats.draft_prefix_asked_tokens_total, stats.draft_prefix_hit_tokens_total) == (3 * 101, 2 * 96)


def test_the_next_turn_of_a_conversation_reads_what_is_new() -> None:
    pair = Pair()
    said = run(pair.loop, [one("a", max_tokens=30)])["a", 0].tokens
    # 129 tokens of the first turn are computed at most, so eight blocks; guesses that were right are among them.
    assert pair.read(one("b", [*PROMPT, *said, *PROMPT[:20]])) == 150 - 128


def test_prompts_that_come_together_are_read_once() -> None:
    pair = Pair()
    assert pair.read(one("a", n=4, temperature=1.0)) == 100 + 3 * 4
    other = [*PROMPT[:64], *reversed(PROMPT[64:])]
    fresh = Pair()
    assert fresh.read(one("a"), one("b"), one("c", other)) == 100 + 4 + 36


def test_a_long_prompt_is_taken_up_by_another_while_it_is_read() -> None:
    pair = Pair(max_step_tokens=32)
    assert pair.read(one("a", n=2)) == 100 + 4


@pytest.mark.parametrize("prefix_cache", ["on", "off"])
def test_without_the_prefix_cache_each_prompt_is_read_whole(prefix_cache: str) -> None:
    pair = Pair(target={"prefix_cache": prefix_cache})
    without = frozenset({"prefix-cache"} if prefix_cache == "on" else ())
    assert [pair.read(replace(one(name), without=without)) for name in "ab"] == [100, 100]
    assert pair.loop.stats().draft_prefix_asked_tokens_total == 0
    assert pair.space.balances()[0].cached == 0


@pytest.mark.parametrize("other", [{"tenant": "b"}, {"cache_salt": "x"}, {"tenant": "", "cache_salt": "a"}])
def test_tenants_and_salts_share_nothing(other: dict[str, Any]) -> None:
    pair = Pair()
    mine = replace(one("r"), tenant="a")
    assert [pair.read(mine), pair.read(replace(mine, **other)), pair.read(mine)] == [100, 100, 4]


def test_adapters_share_nothing_as_in_the_target() -> None:
    pair = Pair(target={"adapters": tiny_adapters(TARGET)})
    found = []
    for adapter in ("", "a1", "", "a1"):
        pair.plans.clear()
        run(pair.loop, [replace(one("r"), adapter=adapter)])
        found.append(pair.prompt_tokens(100))
    assert found == [100, 100, 4, 4]


def test_resets_forget_a_tenants_or_everything() -> None:
    pair = Pair()
    red, blue = (replace(one("r"), tenant=name) for name in ("red", "blue"))
    assert [pair.read(red), pair.read(blue)] == [100, 100]
    pair.loop.reset_cache("red")
    assert [pair.read(blue), pair.read(red)] == [4, 100]
    pair.loop.reset_cache()
    assert pair.space.balances()[0].cached == 0
    assert [pair.read(blue), pair.read(red)] == [100, 100]


def test_what_runs_while_everything_is_reset_leaves_nothing_behind() -> None:
    pair = Pair()
    pair.loop.add(one("a"))
    while not pair.plans:
        pair.loop.step()
    pair.loop.reset_cache()
    while pair.loop.has_work:
        pair.loop.step()
    assert pair.space.balances()[0].cached == 0
    assert pair.read(one("b")) == 100


def test_what_nobody_uses_for_long_is_forgotten() -> None:
    clock, seconds = ManualClock(), 60.0
    pair = Pair(places={"clock": clock, "expiry_seconds": lambda: seconds})
    assert pair.read(one("a")) == 100
    clock.advance(59.0)
    assert pair.read(one("b")) == 4
    clock.advance(59.0)
    assert pair.read(one("c")) == 4
    clock.advance(61.0)
    assert pair.read(one("d")) == 100
    seconds = 0.0  # the setting can change while it runs
    clock.advance(1e6)
    assert pair.read(one("e")) == 4


def test_kept_blocks_make_room_and_nobody_goes_without_guesses_for_them() -> None:
    """Blocks for one sequence of 120 tokens and no more."""
    pair = Pair(num_blocks=8)
    other = [1 + 11 * i % 300 for i in range(100)]
    assert pair.read(one("a")) == 100
    assert pair.read(one("b", other)) == 100
    assert pair.space.pools[0].cache.num_evicted > 0
    assert pair.read(one("c", other)) == 4


def test_a_sequence_whose_blocks_made_room_takes_up_what_is_left() -> None:
    pair = Pair()
    pair.loop.add(one("a", max_tokens=60))
    while len(pair.plans) < 24:
        pair.loop.step()
    (sequence,) = pair.draft._places._places
    pair.draft._places.drop(sequence)
    pair.plans.clear()
    while pair.loop.has_work:
        pair.loop.step()
    assert pair.prompt_tokens(100) == 0
    assert pair.loop.stats().draft_accepted_tokens_total == pair.loop.stats().draft_tokens_total


def test_after_preemptions_of_the_target_nothing_is_read_again() -> None:
    pair = Pair(target={"num_blocks": 14})
    prompts = [[1 + (31 * at + 7 * i) % 300 for i in range(60)] for at in range(3)]
    assert pair.read(*(one(f"r{at}", prompt, max_tokens=50) for at, prompt in enumerate(prompts))) == 3 * 60
    assert pair.loop.stats().preemptions_total > 0


def test_guesses_that_were_wrong_are_not_found_by_anybody() -> None:
    """A draft that is often wrong says the same of a second text, with what the first has left, as one that is new."""
    wrong = tiny_model(seed=12, num_hidden_layers=1)
    guesses = []
    for requests in (["a", "b"], ["b"]):
        draft = draft_proposer(wrong, vocab_size=VOCAB)
        loop = Rig(model=TARGET, proposers=[draft]).make_loop()
        said = run(loop, [one("a", max_tokens=45)])["a", 0].tokens if "a" in requests else ()
        first = loop.stats()
        prompt = [*PROMPT, *said] if said else guesses[0][2]
        run(loop, [one("b", prompt, max_tokens=40)])
        stats = loop.stats()
        at = {
            key: value - first.draft_accepted_at_total.get(key, 0)
            for key, value in stats.draft_accepted_at_total.items()
        }
        guesses.append((stats.draft_prefix_hit_tokens_total, {key: n for key, n in at.items() if n}, prompt))
        loop.close()
    assert (guesses[0][0], guesses[1][0]) == (128, 0)
    assert guesses[0][1] == guesses[1][1] != {}


class Texts:
    """A proposer alone, asked about texts."""

    def __init__(self, **places: Any) -> None:
        self.proposer = draft_proposer(TARGET, vocab_size=VOCAB, places=places)
        self.plans: list[StepPlan] = []
        self._names = BlockKeys(16, secret=b"x")
        self._keys: dict[int, list[BlockKey]] = {}
        submit = self.proposer._executor.submit
        self.proposer._executor.submit = lambda plan: (self.plans.append(plan), submit(plan))[1]  # type: ignore[method-assign]

    def asked(self, number: int, tokens: list[int]) -> Asked:
        keys = self._keys.setdefault(number, [])
        self._names.extend(keys, self._names.root("a"), tokens)
        return Asked(
            sequence=SequenceId(number),
            tokens=tokens,
            num_prompt=len(tokens),
            scope=("a", ""),
            limit=4,
            options=lambda _: RowOptions(),
            keys=keys,
        )

    def guess(self, *texts: tuple[int, list[int]]) -> list[list[int]]:
        return [list(one) for one in self.proposer.propose([self.asked(*text) for text in texts])]

    @property
    def read(self) -> list[int]:
        """Tokens of each row that was no guess, and of the first one behind a text."""
        return [len(row.tokens) for plan in self.plans for row in plan.rows if len(row.tokens) > 1]


def test_texts_that_come_in_one_round_are_read_once_and_all_have_guesses() -> None:
    """As after a reset of the draft alone: the target has them, so none waits for another there."""
    texts = Texts()
    other = [*PROMPT[:64], *reversed(PROMPT[64:])]
    guesses = texts.guess((0, PROMPT), (1, PROMPT), (2, other))
    assert guesses == [Texts().guess((0, text))[0] for text in (PROMPT, PROMPT, other)]
    assert [len(guess) for guess in guesses] == [4, 4, 4]
    assert texts.read == [100, 4, 36]


def test_guesses_that_a_text_has_gone_past_elsewhere_are_not_found() -> None:
    """It was not asked about while the text went another way, beyond the end of a block with guesses in it."""
    texts, text = Texts(), PROMPT[:30]
    guessed = texts.guess((0, text))[0]
    text = [*text, *(token % 300 + 1 for token in guessed), *PROMPT[:20]]
    expected = Texts().guess((0, text))[0]
    assert texts.guess((0, text))[0] == expected
    texts.plans.clear()
    assert texts.guess((1, text))[0] == expected
    assert texts.read == [54 - 48]


def test_the_time_of_a_block_begins_when_its_text_ends() -> None:
    clock = ManualClock()
    texts = Texts(clock=clock, expiry_seconds=lambda: 60.0)
    texts.guess((0, PROMPT))
    clock.advance(100.0)
    texts.proposer.leave(SequenceId(0), PROMPT, 100, ("a", ""))
    clock.advance(59.0)
    texts.guess((1, PROMPT))
    assert texts.read == [100, 4]


def test_an_engine_made_by_its_settings_has_it_and_keeps_to_its_time() -> None:
    path = str(Path(__file__).parents[1] / "golden" / "data" / "grouped_tied")
    config = EngineConfig(
        model=ModelConfig(path=path),
        executor=ExecutorConfig(threads=1, packed_cache="off"),
        scheduler=SchedulerConfig(speculate=f"draft:{path}", speculate_length="fixed"),
        strict=True,
    )
    loop = build_loop(config)
    prompt = [5 + i % 40 for i in range(40)]
    hits = []
    for seconds in (0.0, 0.0, 1e-9):
        loop.change(max_waiting=8, prefix_cache_ttl=seconds)
        run(loop, [one("a", prompt, max_tokens=4)])
        hits.append(loop.stats().draft_prefix_hit_tokens_total)
    loop.close()
    assert hits == [0, 32, 32]

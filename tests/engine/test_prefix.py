"""Shared KV blocks through the engine: equal answers with and without, who shares with whom, and what is counted."""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine.scripted import START, VOCAB, HashExecutor, chain, make_loop, request, run, tokens
from tests.engine.test_embedding import TEXTS, asked, embed, model
from tests.support.tiny import Rig
from tidemill.core.clock import ManualClock
from tidemill.core.config import SchedulerConfig
from tidemill.core.step import PlanRow, RowOutputs
from tidemill.core.tokens import EngineInfo, TokenRequest
from tidemill.engine.loop import EngineLoop
from tidemill.engine.prefix import BlockKeys
from tidemill.executors.protocol import KvPoolSpec
from tidemill.scheduling.kv.space import KvGroupSpace, KvSpace
from tidemill.scheduling.scheduler import Scheduler

SYSTEM = [(7 * i) % VOCAB for i in range(100)]


def computed(executor: HashExecutor) -> int:
    """Tokens of all rows so far."""
    return sum(len(row.tokens) for plan in executor.plans for row in plan.rows)


def cached(deltas: dict[tuple[str, int], list[object]]) -> dict[tuple[str, int], int]:
    return {key: each[-1].num_cached_tokens for key, each in deltas.items()}  # type: ignore[attr-defined]


class WindowKv(HashExecutor):
    """A HashExecutor over a group without and one with a window: whatever a row may read in either has to be right for
    the tokens before the row, wherever they were computed."""

    def __init__(self, window: int) -> None:
        super().__init__()
        self._windows = (None, window)
        self._texts: dict[bytes, bytes] = {START: b""}  # a state and the one before it

    def _row(self, row: PlanRow) -> RowOutputs:
        state = self._read_back(row)
        for token in row.tokens:
            self._texts[after := chain(state, token)] = state
            state = after
        return super()._row(row)

    def _read_back(self, row: PlanRow) -> bytes:
        """The state before the row; every position that its tokens read leads to it."""
        if row.start == 0:
            return START
        state = last = self._kv[0][row.block_tables[0][(row.start - 1) // self._sizes[0]]][
            (row.start - 1) % self._sizes[0]
        ]
        for position in reversed(range(row.start)):
            for window, kv, table, size in zip(self._windows, self._kv, row.block_tables, self._sizes, strict=True):
                if window is None or position > row.start - window:
                    assert kv[table[position // size]][position % size] == state, f"{row.sequence} at {position}"
            state = self._texts[state]
        assert state == START
        return last


def windowed(full: int, window_blocks: int, *, window: int = 8, copies: bool = True, **scheduler: object) -> EngineLoop:
    executor = WindowKv(window)
    groups = [
        KvGroupSpace(num_blocks=full, block_size=4),
        KvGroupSpace(num_blocks=window_blocks, block_size=4, window=window),
    ]
    executor.allocate_kv([KvPoolSpec(group="g", num_blocks=g.num_blocks, block_size=4) for g in groups])
    space = KvSpace(groups)
    info = EngineInfo(
        model="hash", vocab_size=VOCAB, max_model_len=1000, kv_capacity_tokens=space.capacity_tokens, end_token_ids=()
    )
    return EngineLoop(
        executor=executor,
        scheduler=Scheduler(SchedulerConfig(**scheduler), space, copies=copies),  # type: ignore[arg-type]
        info=info,
        clock=ManualClock(),
        seeds=lambda: 1,
        strict=True,
        kv_groups=["g0", "g1"],
    )


def answers(loop: EngineLoop, asked: list[TokenRequest]) -> dict[tuple[str, int], list[int]]:
    return {key: tokens(deltas) for key, deltas in run(loop, *asked).items()}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_answers_are_the_same_with_and_without(data: st.DataObject) -> None:
    """Random shared beginnings, chunks, pools that preempt, windows, choices, and two rounds over one cache."""
    common = data.draw(st.lists(st.integers(0, 40), min_size=0, max_size=3))
    asked = [
        request(
            f"r{index}",
            SYSTEM[:shared] + [(shared * 13 + index * own + i) % VOCAB for i in range(own)],
            n=data.draw(st.sampled_from([1, 1, 3])),
            max_tokens=data.draw(st.integers(1, 30)),
            seed=index,
        )
        for index, (shared, own) in enumerate(
            data.draw(
                st.lists(
                    st.tuples(st.sampled_from([0, 4, 11, 40, *common]), st.integers(1, 12)), min_size=1, max_size=6
                )
            )
        )
    ]
    way = {
        "full": data.draw(st.sampled_from([25, 40, 200])),
        "window_blocks": data.draw(st.sampled_from([9, 14, 100])),
        "max_step_tokens": data.draw(st.sampled_from([1, 5, 16, 512])),
        "max_running": data.draw(st.sampled_from([1, 3, 64])),
        "chunked_prefill": data.draw(st.booleans()),
    }
    plain = answers(windowed(full=200, window_blocks=200, prefix_cache="off"), asked)
    loop = windowed(**way)  # type: ignore[arg-type]
    assert answers(loop, asked) == plain
    assert answers(loop, asked) == plain


@pytest.mark.parametrize(("common", "hit"), [(4, 4), (12, 12), (36, 36)])
def test_a_reused_window_gives_what_a_fresh_one_gives(common: int, hit: int) -> None:
    """Window 8, blocks of 4, a prompt of 40; then others that begin alike, generated past the window."""
    first = request("first", 40, max_tokens=1)
    warm = request("r", [*first.prompt[:common], *range(500, 500 + 40 - common)], max_tokens=20)
    loop = windowed(40, 40)
    run(loop, first)
    answer = run(loop, warm)
    assert cached(answer) == {("r", 0): hit}
    assert tokens(answer["r", 0]) == answers(windowed(40, 40, prefix_cache="off"), [warm])["r", 0]


def test_the_next_turn_computes_what_is_new() -> None:
    executor = HashExecutor()
    loop = make_loop(executor=executor)
    first = run(loop, request("one", SYSTEM[:50], max_tokens=31, ignore_eos=True))
    before = computed(executor)
    turn = [*SYSTEM[:50], *tokens(first["one", 0]), 1, 2, 3]
    second = run(loop, request("two", turn, max_tokens=5, ignore_eos=True))
    assert cached(second) == {("two", 0): 80}  # of 81 tokens, of which the last was never computed
    assert computed(executor) - before == len(turn) - 80 + 4
    assert loop.stats().prompt_tokens_total == 50 + 4


@pytest.mark.parametrize("copies", [True, False])
def test_a_block_that_is_the_same_for_some_tokens_is_copied(copies: bool) -> None:
    executor = HashExecutor()
    loop = make_loop(executor=executor, copies=copies)
    plain = make_loop(prefix_cache="off")
    first = run(loop, request("one", SYSTEM[:50], max_tokens=21, ignore_eos=True))
    said = tokens(first["one", 0])  # 70 tokens are in the KV: four full blocks, and 6 tokens of the fifth
    hits = {}
    for name, prompt in {
        "turn": [*SYSTEM[:50], *said, 1, 2],
        "within": [*SYSTEM[:50], *said[:17], 1, 2],
        "early": [*SYSTEM[:37], SYSTEM[37] ^ 256, 2],  # its first byte is the same
        "whole": SYSTEM[:48],
        "first": [SYSTEM[0], 1, 2],
    }.items():
        asked = request(name, prompt, max_tokens=30, ignore_eos=True)
        answer = run(loop, asked)
        assert tokens(answer[name, 0]) == tokens(run(plain, asked)[name, 0])
        hits[name] = answer[name, 0][-1].num_cached_tokens
    if copies:
        assert hits == {"turn": 70, "within": 67, "early": 37, "whole": 47, "first": 1}
        assert executor.copied == 5
    else:
        assert hits == {"turn": 64, "within": 64, "early": 32, "whole": 32, "first": 0}
        assert executor.copied == 0


def test_a_prompt_shorter_than_a_block_leaves_what_grew_from_it() -> None:
    loop = make_loop()
    said = tokens(run(loop, request("one", [1, 2, 3], max_tokens=40, ignore_eos=True))["one", 0])
    assert cached(run(loop, request("two", [1, 2, 3, *said, 4], max_tokens=1))) == {("two", 0): 42}


def test_a_sequence_that_outgrew_the_pool_leaves_nothing_to_copy() -> None:
    loop = make_loop(num_blocks=3, kv_capacity_tokens=200)
    answer = run(loop, request("r", 30, max_tokens=100, ignore_eos=True))
    assert answer["r", 0][-1].finish_reason == "length"
    assert loop.stats().kv_blocks_free == 0


def test_the_choices_of_a_request_share_their_prompt() -> None:
    executor = HashExecutor()
    loop = make_loop(executor=executor)
    answer = run(loop, request("r", SYSTEM, n=4, max_tokens=1))
    assert cached(answer) == {("r", 0): 0, ("r", 1): 99, ("r", 2): 99, ("r", 3): 99}
    assert (computed(executor), executor.copied) == (100 + 3, 3)  # the first has ended, and its last block is copied


@pytest.mark.parametrize(
    "other", [{"tenant": "b"}, {"cache_salt": "x"}, {"tenant": "", "cache_salt": "a"}, {"tenant": ""}]
)
def test_tenants_and_salts_share_nothing(other: dict[str, str]) -> None:
    loop = make_loop()
    mine = replace(request("r", SYSTEM, max_tokens=1), tenant="a")
    run(loop, mine)
    assert cached(run(loop, replace(mine, **other))) == {("r", 0): 0}  # type: ignore[arg-type]
    assert cached(run(loop, mine)) == {("r", 0): 99}


def test_a_reset_of_one_tenant_forgets_nothing_of_another() -> None:
    loop = make_loop()
    red, blue = (replace(request("r", SYSTEM, max_tokens=1), tenant=name) for name in ("red", "blue"))
    run(loop, red)
    run(loop, blue)
    loop.reset_cache("red")
    assert cached(run(loop, red)) == {("r", 0): 0}
    assert cached(run(loop, red)) == {("r", 0): 99}
    assert cached(run(loop, blue)) == {("r", 0): 99}


def test_blocks_expire_while_nothing_runs() -> None:
    clock = ManualClock()
    loop = make_loop(clock=clock, prefix_cache_ttl=60.0)
    run(loop, request("r", SYSTEM, max_tokens=1))
    clock.advance(59.0)
    assert (loop.step(), loop.stats().kv_blocks_cached) == ([], 7)
    clock.advance(2.0)
    assert (loop.step(), loop.stats().kv_blocks_cached, loop.stats().kv_blocks_free) == ([], 0, 64)


def test_a_reset_forgets_everything() -> None:
    loop = make_loop()
    run(loop, request("r", SYSTEM, max_tokens=1))
    assert loop.stats().kv_blocks_cached == 7
    assert loop.reset_cache() == 7
    assert (loop.stats().kv_blocks_cached, loop.stats().kv_blocks_free) == (0, 64)
    assert cached(run(loop, request("r", SYSTEM, max_tokens=1))) == {("r", 0): 0}


def test_the_counters_say_what_was_asked_hit_and_missed_again() -> None:
    loop = make_loop(num_blocks=8)
    run(loop, request("a", SYSTEM, max_tokens=1))
    run(loop, request("a", SYSTEM, max_tokens=1))
    stats = loop.stats()
    assert (stats.prefix_asked_tokens_total, stats.prefix_hit_tokens_total) == (200, 99)
    assert (stats.prefix_evicted_blocks_total, stats.prefix_missed_again_tokens_total) == (0, 0)
    run(loop, request("b", 100, max_tokens=1))
    run(loop, request("a", SYSTEM, max_tokens=1))
    stats = loop.stats()
    assert (stats.prefix_asked_tokens_total, stats.prefix_hit_tokens_total) == (400, 99 + 16)
    assert (stats.prefix_evicted_blocks_total, stats.prefix_missed_again_tokens_total) == (6 + 6, 80)


def test_penalties_count_a_prompt_that_came_from_the_cache() -> None:
    ways = []
    for prefix_cache in ("on", "off"):
        executor = HashExecutor()
        loop = make_loop(executor=executor, prefix_cache=prefix_cache)
        for name in "ab":
            run(loop, request(name, SYSTEM, max_tokens=3, repetition_penalty=1.3, presence_penalty=0.5))
        ways.append([row.options for plan in executor.plans for row in plan.rows if row.options])
    assert ways[0] == ways[1]
    assert ways[0][3].penalties is not None
    assert set(ways[0][3].penalties.ids) == set(SYSTEM)


def test_encoders_share_nothing() -> None:
    rig = Rig(model=model())
    loop = rig.make_loop()
    assert embed(loop, [TEXTS[2]] * 2) == embed(loop, [TEXTS[2]] * 2)
    stats = loop.stats()
    assert (stats.prefix_asked_tokens_total, stats.kv_blocks_cached) == (0, 0)
    loop.add(asked(0, TEXTS[2]))
    loop.step()
    loop.close()


def test_the_tokens_of_a_block_and_all_before_them_make_its_key() -> None:
    keys = BlockKeys(4, secret=b"s")
    root = keys.root("tenant", "salt")
    chain: list[bytes] = []
    keys.extend(chain, root, range(11))  # type: ignore[arg-type]
    assert len(chain) == 2
    keys.extend(chain, root, range(12))  # type: ignore[arg-type]
    assert len(set(chain)) == 3
    whole: list[bytes] = []
    keys.extend(whole, root, list(range(12)))  # type: ignore[arg-type]
    assert whole == chain
    for position in range(12):
        assert (
            keys.tail(chain[: position // 4], root, list(range(position)))
            in (  # type: ignore[arg-type]
                None,
                chain[position // 4][: 16 + 4 * (position % 4)],
            )
        )
        changed = list(range(12))
        changed[position] += 2**16
        other: list[bytes] = []
        keys.extend(other, root, changed)  # type: ignore[arg-type]
        assert [a == b for a, b in zip(chain, other, strict=True)] == [index < position // 4 for index in range(3)]


def test_keys_made_at_once_are_those_made_one_by_one() -> None:
    """And each is what the module says: a keyed hash of the key before it, and the tokens in four bytes each."""
    keys, ids = BlockKeys(4, secret=b"s"), list(range(1000, 1019))
    root = keys.root("tenant")
    at_once, slowly = [], []
    keys.extend(at_once, root, ids)
    for end in range(len(ids) + 1):
        keys.extend(slowly, root, ids[:end])
    assert at_once == slowly
    before = root
    for key, begin in zip(at_once, range(0, 16, 4), strict=True):
        digest = blake2b(before, digest_size=16, key=b"s").digest()
        assert key == digest + b"".join(token.to_bytes(4, "little") for token in ids[begin : begin + 4])
        before = key


def test_roots_and_secrets_keep_chains_apart() -> None:
    keys = BlockKeys(4, secret=b"s")
    parts = [(), ("",), ("", ""), ("a", "bc"), ("ab", "c"), ("abc",), ("abc", "")]
    assert len({keys.root(*each) for each in parts}) == len(parts)
    assert BlockKeys(4).root("a") != BlockKeys(4).root("a")


def test_a_request_without_the_cache_takes_nothing_from_it_and_leaves_nothing() -> None:
    loop = make_loop()
    alone = replace(request("r", SYSTEM, max_tokens=1), without=("prefix-cache",))
    fresh = run(loop, alone)
    assert loop.stats().kv_blocks_cached == 0
    run(loop, request("r", SYSTEM, max_tokens=1))
    assert loop.stats().kv_blocks_cached == 7
    again = run(loop, alone)
    assert cached(fresh) == cached(again) == {("r", 0): 0}
    assert fresh == again
    assert loop.stats().kv_blocks_cached == 7
    loop.check_idle()

"""The index against a plain list of what an engine has, over random events."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.gateway.routing.prompt import Prompt
from tidemill.gateway.routing.told_blocks import ToldBlocks

SIZE = 2
CHAINS = st.lists(st.integers(0, 1), min_size=SIZE, max_size=4 * SIZE).map(
    lambda ids: tuple(ids[: len(ids) // SIZE * SIZE])
)
EVENTS = st.lists(st.tuples(st.sampled_from(["store", "store", "remove", "lose"]), CHAINS), max_size=30)


def prefixes(tokens: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [tokens[:end] for end in range(SIZE, len(tokens) + 1, SIZE)]


@settings(max_examples=60, deadline=None)
@given(EVENTS, CHAINS)
def test_it_knows_what_a_set_of_prefixes_knows(
    events: list[tuple[str, tuple[int, ...]]], asked: tuple[int, ...]
) -> None:
    told, naive = ToldBlocks(), set[tuple[int, ...]]()
    for kind, tokens in events:
        chain = prefixes(tokens)
        if kind == "store":
            told.store(chain, None, tokens, SIZE)
            naive |= set(chain)
        elif kind == "remove":
            told.remove(chain[-1:])
            naive -= set(chain[-1:])
        else:
            told.lose()
            naive.clear()
        assert len(told) == len(naive)
    found = 0
    for prefix in prefixes(asked):
        if prefix not in naive:
            break
        found = len(prefix)
    assert told.match(Prompt(asked)) == found


def test_there_is_a_most() -> None:
    told = ToldBlocks(3)
    for token in range(10):
        told.store([token], None, [token], 1)
    assert len(told) == 3
    assert [told.match(Prompt([token])) for token in (6, 7, 9)] == [0, 1, 1]


def test_pictures_salts_and_adapters_are_other_blocks() -> None:
    told = ToldBlocks()
    told.store(["picture"], None, [1], 1, extra=[("image",)])
    told.store(["adapter"], None, [2], 1, adapter="law")
    assert told.match(Prompt([1])) == 0
    assert told.match(Prompt([2])) == 0
    assert told.match(Prompt([2], "law")) == 1


def test_a_block_whose_parent_is_not_known_is_left_out() -> None:
    told = ToldBlocks()
    told.store(["child"], "parent", [1], 1)
    assert len(told) == 0

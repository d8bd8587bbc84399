"""What a replica is presumed to hold, against the plainest form of it: a list in order of use."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidemill.gateway.routing.blocks import text_blocks, token_blocks
from tidemill.gateway.routing.held_blocks import HeldBlocks

PROMPTS = st.lists(st.integers(0, 2), max_size=8)


@given(st.integers(1, 12), st.lists(PROMPTS, max_size=30), PROMPTS)
def test_it_forgets_the_least_recently_used_ends_first(room: int, sent: list[list[int]], asked: list[int]) -> None:
    held, recent = HeldBlocks(room), list[tuple[int, ...]]()
    for prompt in sent:
        held.add(token_blocks(prompt, 1))
        for end in range(min(len(prompt), room), 0, -1):
            path = tuple(prompt[:end])
            recent = [one for one in recent if one != path] + [path]
        recent = recent[-room:]
    matched = 0
    while matched < len(asked) and tuple(asked[: matched + 1]) in recent:
        matched += 1
    assert held.match(token_blocks(asked, 1)) == matched
    assert len(held) == len(recent) <= room


def test_keys_stand_for_all_before_them_and_for_whose_they_are() -> None:
    assert token_blocks([1, 2, 3, 4, 5], 2)[0] == token_blocks([1, 2, 9], 2)[0]
    assert token_blocks([9, 9, 3, 4], 2)[1] != token_blocks([1, 2, 3, 4], 2)[1]
    assert text_blocks(b"abcdefgh", 4) == text_blocks(b"abcdefghij", 4)
    assert not set(text_blocks(b"abcdefgh", 4, salt="a")) & set(text_blocks(b"abcdefgh", 4, salt="b"))


def test_a_prompt_longer_than_the_room_is_kept_from_its_beginning() -> None:
    held = HeldBlocks(3)
    held.add(range(100, 110))
    assert held.match(range(100, 110)) == 3
    held.resize(2)
    assert held.match(range(100, 110)) == 2
    held.clear()
    assert held.match(range(100, 110)) == 0

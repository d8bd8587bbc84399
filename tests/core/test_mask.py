"""Token masks against sets of tokens."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidemill.core.mask import allows, both, mask_bytes, only, without

VOCAB = 70
tokens = st.sets(st.integers(0, VOCAB - 1))


def allowed(mask: bytes | None) -> set[int]:
    return {token for token in range(VOCAB) if allows(mask, token)}


@given(tokens, tokens)
def test_masks_are_sets_of_tokens(first: set[int], second: set[int]) -> None:
    every = set(range(VOCAB))
    assert allowed(only(first, VOCAB)) == first
    assert allowed(without(first, VOCAB)) == every - first
    assert allowed(both(only(first, VOCAB), without(second, VOCAB))) == first - second
    assert allowed(both(None, only(first, VOCAB))) == allowed(both(only(first, VOCAB), None)) == first
    assert both(None, None) is None
    assert allowed(None) == every


def test_a_mask_is_whole_words_of_32_tokens_lowest_bit_first() -> None:
    assert [mask_bytes(vocab) for vocab in (1, 32, 33, 64, 49152)] == [4, 4, 8, 8, 6144]
    assert only([0, 33], 34) == b"\x01\x00\x00\x00\x02\x00\x00\x00"

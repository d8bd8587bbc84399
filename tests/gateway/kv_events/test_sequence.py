"""Numbers in order, with gaps, twice, and from the beginning again."""

from __future__ import annotations

import msgspec

from tidemill.gateway.kv_events.sequence import Sequencer
from tidemill.gateway.routing.prompt import Prompt
from tidemill.gateway.routing.told_blocks import ToldBlocks


def message(token: int, *, when: float | None = None) -> bytes:
    """One that stores a block of one token."""
    stored = ["BlockStored", [token], None, [token], 1, None]
    return msgspec.msgpack.encode([float(token) if when is None else when, [stored], 0])


def following() -> Sequencer:
    return Sequencer("r0", ToldBlocks())


def has(sequencer: Sequencer, *tokens: int) -> list[bool]:
    return [sequencer.told.match(Prompt([token])) == 1 for token in tokens]


def feed(sequencer: Sequencer, number: int, payload: bytes) -> None:
    """Without a replay."""
    sequencer.missing(number, payload)
    sequencer.take(number, payload)


def test_from_the_beginning_everything_is_known() -> None:
    one = following()
    for number in range(3):
        assert one.missing(number, message(number)) is None
        one.take(number, message(number))
    assert has(one, 0, 1, 2) == [True] * 3
    assert one.told.complete


def test_a_gap_without_a_replay_ends_what_was_known() -> None:
    one = following()
    feed(one, 0, message(1))
    assert one.missing(2, message(3)) == 1
    one.take(2, message(3))
    assert has(one, 1, 3) == [False, True]
    assert (one.told.complete, one.told.losses) == (False, 1)
    feed(one, 3, message(4))
    assert has(one, 3, 4) == [True, True], "what came since is known"


def test_a_gap_is_filled_by_the_replay() -> None:
    one = following()
    feed(one, 0, message(1))
    assert one.missing(3, message(4)) == 1
    one.replayed([(n, message(n + 1)) for n in (1, 2, 3, 4)])  # the replay has what is on its way too
    one.take(3, message(4))
    assert one.missing(4, message(5)) is None
    one.take(4, message(5))
    assert has(one, 1, 2, 3, 4, 5) == [True] * 5
    assert (one.told.complete, one.told.losses) == (True, 0)


def test_a_replay_that_begins_too_late_fills_no_gap() -> None:
    one = following()
    feed(one, 0, message(1))
    assert one.missing(3, message(4)) == 1
    one.replayed([(2, message(3)), (3, message(4))])
    one.take(3, message(4))
    assert has(one, 1, 3, 4) == [False, False, True]
    assert not one.told.complete


def test_numbers_from_the_beginning_are_another_process() -> None:
    one = following()
    for number in range(3):
        feed(one, number, message(number + 1))
    assert one.missing(0, message(9)) is None
    one.take(0, message(9))
    assert has(one, 1, 2, 3, 9) == [False, False, False, True]
    assert (one.told.complete, one.told.losses) == (True, 1)


def test_another_process_whose_first_messages_were_missed() -> None:
    one = following()
    for number in range(5):
        feed(one, number, message(number + 1))
    assert one.missing(2, message(12)) == 0
    one.replayed([(n, message(n + 10)) for n in range(3)])
    one.take(2, message(12))
    assert has(one, 1, 10, 11, 12) == [False, True, True, True]
    assert one.told.complete


def test_joined_late_all_is_asked_for() -> None:
    one = following()
    assert one.missing(7, message(7)) == 0
    one.replayed([(n, message(n)) for n in range(8)])
    one.take(7, message(7))
    assert one.told.complete
    one.doubt()
    assert has(one, 1, 7) == [False, False]
    assert one.missing(8, message(8)) == 0


def test_what_cannot_be_read_ends_what_was_known() -> None:
    one = following()
    feed(one, 0, message(1))
    feed(one, 1, b"\xc1")
    assert has(one, 1) == [False]
    assert not one.told.complete

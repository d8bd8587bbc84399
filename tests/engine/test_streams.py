"""What an aborted stream gives out: nothing more, queued or not."""

from __future__ import annotations

import pytest

from tests.engine.scripted import request
from tidemill.core.tokens import FinishReason, TokenDelta
from tidemill.engine.streams import Stream, Streams


def delta(stream: Stream, choice: int, token: int, finish: FinishReason | None = None) -> TokenDelta:
    return TokenDelta(request_id=stream.ticket, choice=choice, tokens=(token,), finish_reason=finish)


@pytest.mark.parametrize(("choice", "left"), [(0, [2, 3]), (None, [])])
async def test_what_was_queued_before_an_abort_is_not_given_out(choice: int | None, left: list[int]) -> None:
    streams = Streams()
    stream = streams.open(request("a", 3, n=2))
    streams.deliver([delta(stream, 0, 1), delta(stream, 1, 2), delta(stream, 1, 3, FinishReason.STOP)])
    assert streams.abort("a", choice) == stream.ticket
    found = [one async for one in stream.deltas()]
    assert [one.tokens[0] for one in found] == left


async def test_a_choice_that_goes_on_is_given_out_whole() -> None:
    streams = Streams()
    stream = streams.open(request("a", 3, n=2))
    streams.deliver([delta(stream, 0, 1), delta(stream, 1, 2)])
    streams.abort("a", 0)
    streams.deliver([delta(stream, 0, 5), delta(stream, 1, 3, FinishReason.STOP)])
    assert [(one.choice, one.tokens[0]) async for one in stream.deltas()] == [(1, 2), (1, 3)]

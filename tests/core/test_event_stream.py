"""Server-sent events: what comes out depends on the bytes, never on how they were cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.core.event_stream import EventStreamReader, OversizedEvent, ServerEvent

STREAM = (
    b'\xef\xbb\xbfdata: {"a": "\xc3\xa4"}\n\n: keep-alive\r\n\r\nevent: error\r\ndata: 1\r\ndata:  2\r\n\r\n'
    b"data\rid: 7\r\rretry: 10\n\ndata: [DONE]\n\n"
)
EVENTS = [
    ServerEvent(b'{"a": "\xc3\xa4"}'),
    ServerEvent(b"1\n 2", "error"),
    ServerEvent(b""),
    ServerEvent(b"[DONE]"),
]


def read(*pieces: bytes) -> list[ServerEvent]:
    reader = EventStreamReader()
    return [event for piece in pieces for event in reader.feed(piece)]


def test_the_fields_of_the_standard() -> None:
    # A lone "data" field is an event with empty data only if there is a data buffer; the standard fires none for it
    # in browsers ("" data), but a JSON reader has to see that something came.
    assert read(STREAM) == EVENTS


def test_every_single_cut_gives_the_same_events() -> None:
    for place in range(len(STREAM) + 1):
        assert read(STREAM[:place], STREAM[place:]) == EVENTS, place
    assert read(*(STREAM[i : i + 1] for i in range(len(STREAM)))) == EVENTS


_LINES = st.sampled_from([b"data: x", b"data:", b":", b": hi", b"event: e", b"", b"", b"id", b"data: \xe2\x80\xa8y"])
_ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


@given(st.lists(st.tuples(_LINES, _ENDS), max_size=30), st.lists(st.integers(0, 400), max_size=8))
def test_any_stream_in_any_pieces(lines: list[tuple[bytes, bytes]], cuts: list[int]) -> None:
    # A line that ends in CR before one that is empty and ends in LF is CR LF: one end.
    whole = b"".join(line + end for line, end in lines)
    places = sorted({0, *(min(cut, len(whole)) for cut in cuts), len(whole)})
    pieces = [whole[a:b] for a, b in pairwise(places)]
    assert read(*pieces) == read(whole) == _simple(whole)


def _simple(whole: bytes) -> list[ServerEvent]:
    """The standard's algorithm, as plain as can be."""
    events: list[ServerEvent] = []
    data: list[bytes] = []
    name = b""
    for line in whole.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")[:-1]:
        field, _, value = line.partition(b":")
        value = value[1:] if value[:1] == b" " else value
        if not line:
            if data:
                events.append(ServerEvent(b"\n".join(data), name.decode() or "message"))
            data, name = [], b""
        elif field == b"data":
            data.append(value)
        elif field == b"event":
            name = value
    return events


def test_an_event_whose_end_is_missing_is_the_rest() -> None:
    reader = EventStreamReader()
    assert reader.feed(b"data: 1\n\ndata: 2\nda") == [ServerEvent(b"1")]
    assert reader.feed(b"ta: 3") == []
    assert reader.rest() == ServerEvent(b"2\n3")
    assert reader.rest() is None


def test_comments_are_counted_and_bring_nothing() -> None:
    reader = EventStreamReader()
    assert reader.feed(b": a\n\n:\n\n") == []
    assert reader.comments == 2


@pytest.mark.parametrize("piece", [b"x", b"data: x\n"])
def test_an_event_without_end_is_refused(piece: bytes) -> None:
    reader = EventStreamReader(max_bytes=1000)
    fed = [reader.feed(piece) for _ in range(1000 // len(piece))]
    assert not any(fed)
    with pytest.raises(OversizedEvent):
        reader.feed(piece)


def test_many_events_are_no_long_event() -> None:
    reader = EventStreamReader(max_bytes=100)
    assert sum(len(reader.feed(b"data: 12345\n\ndata: 1\n\n")) for _ in range(1000)) == 2000

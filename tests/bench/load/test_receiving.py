"""What is made of an answer's bytes does not depend on how the network cuts them."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.bench.load.http_target import Receiving
from tidemill.bench.load.record import RequestRecord
from tidemill.bench.load.watch import Watch

TEXTS = ["a", " b", "", "\N{WATER WAVE}", "c d e", '"quoted"']
_EVENTS = st.one_of(
    st.sampled_from(TEXTS).map(lambda text: f'data: {{"choices":[{{"delta":{{"content":{_json(text)}}}}}]}}\n\n'),
    st.sampled_from([": keep-alive\n\n", 'data: {"choices":[{"delta":{"role":"assistant"}}]}\n\n', "event: x\n\n"]),
    st.just('data: {"error":{"message":"died"}}\n\n'),
    st.just('data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\r\n\r\n'),
    st.just('data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":9}}\n\n'),
    st.just("data: [DONE]\n\n"),
    st.just("data: {oops\n\n"),
)


def _json(text: str) -> str:
    return '"' + text.replace('"', '\\"') + '"'


def seen(*pieces: bytes) -> RequestRecord:
    record = RequestRecord(index=0, due=0.0)
    receiving = Receiving(Watch(record, lambda: 1.0, cancel_after=4))
    receiving.head(200, {"content-type": "text/event-stream"})
    if not any(receiving.body(piece) for piece in pieces):
        receiving.ends()
    return record


@settings(deadline=None)
@given(st.lists(_EVENTS, max_size=12), st.lists(st.integers(0, 900), max_size=9))
def test_any_answer_in_any_pieces(events: list[str], cuts: list[int]) -> None:
    whole = "".join(events).encode()
    places = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    pieces = [whole[begin:end] for begin, end in pairwise(places)]
    assert seen(*pieces) == seen(whole) == seen(*(whole[i : i + 1] for i in range(len(whole))))
    assert seen(whole).ended == 1.0


def test_nothing_after_the_end_counts() -> None:
    chunk = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
    record = seen(chunk + b"data: [DONE]\n\n" + chunk + b'data: {"error":"late"}\n\n')
    assert (record.outcome, record.arrived_tokens) == ("ok", 1)


def test_an_end_marker_without_an_empty_line_after_it_is_one() -> None:
    assert seen(b'data: {"choices":[{"delta":{"content":"x"}}]}\n\ndata: [DONE]').outcome == "ok"

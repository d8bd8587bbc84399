"""What is seen of an answer, against a scripted server, in virtual time: every figure right to the microsecond."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.scripted_run import answers, asked, on_backend, on_server
from tidemill.bench.figures.latencies import samples
from tidemill.bench.load.record import RequestRecord
from tidemill.bench.scripted.script import Script, ScriptedAnswer, Step

Watched = Callable[..., RequestRecord]


def over_http(script: Script, **fields: Any) -> RequestRecord:
    return on_server(script, asked(**fields))[0].records[0]


def in_process(script: Script, **fields: Any) -> RequestRecord:
    return on_backend(script, asked(**fields))[0].records[0]


both = pytest.mark.parametrize("watched", [over_http, in_process])


def times(record: RequestRecord, metric: Any) -> list[float]:
    return [pytest.approx(value, abs=1e-6) for value in samples(record, metric)]


@both
def test_a_late_first_token(watched: Watched) -> None:
    record = watched(answers(Step(after=1.5, tokens=1), Step(after=0.02, tokens=1, times=9), delay=0.25))
    assert times(record, "ttft") == [1.75]
    assert [0.02] * 9 == times(record, "itl") == times(record, "gap")
    assert times(record, "tpot") == [0.02]
    assert times(record, "e2e") == [1.75 + 9 * 0.02]
    assert (record.outcome, record.status, record.finish_reason) == ("ok", 200, "length")
    assert (record.output_tokens, record.arrived_tokens, record.chunks, record.counted) == (10, 10, 10, "each")


@both
def test_role_empty_and_usage_events_are_no_tokens(watched: Watched) -> None:
    record = watched(
        answers(
            Step(role=True),
            Step(after=0.1, empty=True),
            Step(after=0.4, tokens=1),
            Step(after=0.1, empty=True),
            Step(after=0.1, tokens=1),
            Step(after=3.0, finish="stop"),
            Step(after=3.0, usage=True),
            Step(after=1.0, done=True),
        )
    )
    assert times(record, "ttft") == [0.5]
    assert times(record, "itl") == [0.2]
    assert times(record, "e2e") == [7.7]
    assert (record.output_tokens, record.chunks) == (2, 2)


def test_keep_alives_are_no_tokens() -> None:
    record = over_http(answers(Step(after=0.5, comment="keep-alive", times=4), Step(tokens=1), Step(raw="\n\n:\n\n")))
    assert times(record, "ttft") == [2.0]
    assert record.chunks == 1


@pytest.mark.parametrize("channel", ["reasoning", "tool", "refusal"])
@both
def test_the_first_token_of_any_channel_counts(watched: Watched, channel: Any) -> None:
    record = watched(answers(Step(after=0.3, tokens=1, channel=channel), Step(after=5.0, tokens=1)))
    assert times(record, "ttft") == [0.3]
    assert times(record, "itl") == [5.0]
    assert record.output_tokens == 2


def test_a_hundred_tokens_however_they_are_cut() -> None:
    """Case 45: tokens, tokens per second and the mean time per token do not depend on the chunks."""
    cuts = [
        (Step(after=0.01, tokens=1, times=100),),
        (Step(after=0.01, tokens=1), Step(after=0.11, tokens=11, times=9)),
        (
            Step(after=0.01, tokens=1),
            Step(after=0.25, tokens=25, times=3),
            Step(empty=True),
            Step(after=0.24, tokens=24),
        ),
    ]
    for steps in cuts:
        record = over_http(answers(*steps))
        assert (record.output_tokens, record.arrived_tokens) == (100, 100)
        assert times(record, "itl") == [0.01] * 99
        assert times(record, "tpot") == [0.01]
        assert times(record, "ttft") == [0.01]
        assert times(record, "e2e") == [1.0]
    assert (record.chunks, record.counted) == (5, "spread")
    assert times(record, "gap") == [0.25, 0.25, 0.25, 0.24]


def test_a_hundred_tokens_at_once() -> None:
    record = over_http(answers(Step(after=1.0, tokens=100)))
    assert times(record, "ttft") == [1.0]
    assert times(record, "itl") == [0.0] * 99
    assert times(record, "gap") == []
    assert (record.output_tokens, record.counted) == (100, "spread")


def test_chunks_that_say_how_many_tokens_they_are() -> None:
    """By log-probabilities; a caller without usage knows the numbers all the same."""
    steps = (Step(after=0.1, tokens=3, counted=True), Step(after=0.1, tokens=5, counted=True))
    record = over_http(answers(*steps, usage=False))
    assert [item.tokens for item in record.arrived] == [3, 5]
    assert (record.output_tokens, record.counted) == (8, "each")


def test_without_usage_each_chunk_counts_as_one_token_and_that_is_said() -> None:
    record = over_http(answers(Step(after=0.1, tokens=4, times=3), usage=False))
    assert (record.output_tokens, record.counted) == (3, "chunks")


def test_an_end_token_without_text_belongs_to_no_chunk() -> None:
    record = over_http(answers(Step(after=0.1, tokens=1, times=5), Step(finish="stop"), extra_tokens=1))
    assert [item.tokens for item in record.arrived] == [1] * 5
    assert (record.output_tokens, record.counted) == (6, "each")


@both
def test_cached_tokens_are_those_the_server_tells(watched: Watched) -> None:
    assert watched(answers(Step(tokens=1), cached_tokens=5), prompt=8).cached_tokens == 5
    assert watched(answers(Step(tokens=1)), prompt=8).cached_tokens is None
    assert watched(answers(Step(tokens=1)), prompt=8).prompt_tokens == 8


@pytest.mark.parametrize(
    ("status", "outcome"), [(429, "refused"), (503, "refused"), (500, "error"), (400, "error"), (404, "error")]
)
@both
def test_refusals_and_errors_before_the_answer(watched: Watched, status: int, outcome: str) -> None:
    record = watched(Script(answers=(ScriptedAnswer(status=status, message="full\nup", delay=0.2),)))
    assert (record.outcome, record.status, record.ended) == (outcome, status, pytest.approx(0.2))
    assert "full up" in str(record.error)
    assert record.failed
    assert record.arrived == []


@both
def test_an_error_event_within_an_answer(watched: Watched) -> None:
    record = watched(answers(Step(after=0.1, tokens=1, times=3), Step(after=0.5, error="engine died")))
    assert (record.outcome, record.error, record.ended) == ("error", "engine died", pytest.approx(0.8))
    assert record.arrived_tokens == 3


@both
def test_a_connection_that_is_cut(watched: Watched) -> None:
    record = watched(answers(Step(after=0.1, tokens=1, times=3), Step(after=0.5, disconnect=True)))
    assert (record.outcome, record.ended) == ("disconnected", pytest.approx(0.8))
    assert record.arrived_tokens == 3
    assert record.failed


@both
def test_a_body_that_ends_without_a_finish_reason(watched: Watched) -> None:
    record = watched(answers(Step(after=0.1, tokens=1, times=3), Step(end=True)))
    assert record.outcome == "disconnected"
    assert "without a finish reason" in str(record.error)


@both
def test_a_missing_end_marker_is_no_fault_if_all_is_there(watched: Watched) -> None:
    record = watched(answers(Step(tokens=1), Step(finish="stop"), Step(usage=True), Step(after=0.25, end=True)))
    assert (record.outcome, record.ended) == ("ok", pytest.approx(0.25))


@both
def test_a_stall_ends_at_the_time_limit(watched: Watched) -> None:
    script = answers(Step(after=0.1, tokens=1), Step(after=1e6, tokens=1))
    run = (on_server if watched is over_http else on_backend)(script, asked(), timeout=30.0)[0]
    assert (run.records[0].outcome, run.records[0].ended) == ("timeout", pytest.approx(30.0))
    assert run.records[0].arrived_tokens == 1


@both
def test_hanging_up_after_so_many_tokens(watched: Watched) -> None:
    record = watched(answers(Step(after=0.1, tokens=1, times=100)), cancel_after=7)
    assert (record.outcome, record.ended, record.arrived_tokens) == ("cancelled", pytest.approx(0.7), 7)
    assert not record.failed


def test_who_hangs_up_is_noticed_by_the_server() -> None:
    script = answers(Step(after=0.1, tokens=1, times=100))
    assert on_server(script, asked(cancel_after=7))[1].cut == 1
    assert on_backend(script, asked(cancel_after=7))[1].closed == 1


def test_garbage_within_a_stream_is_an_error() -> None:
    record = over_http(answers(Step(tokens=1), Step(raw="data: {not json\n\n")))
    assert record.outcome == "error"
    assert "not JSON" in str(record.error)


def test_a_server_that_does_not_stream_brings_all_tokens_at_the_end() -> None:
    body = '{"choices":[{"message":{"content":"a b c"},"finish_reason":"stop"}],"usage":{"completion_tokens":3}}'
    script = answers(Step(after=2.0, raw=body), Step(end=True), headers={"content-type": "application/json"})
    record = over_http(script)
    assert (record.outcome, [item.tokens for item in record.arrived]) == ("ok", [3])
    assert [2.0] == times(record, "ttft") == times(record, "e2e")


def test_time_in_the_queue_where_a_header_tells() -> None:
    record = over_http(answers(Step(tokens=1), headers={"x-queue-time": "250"}))
    assert times(record, "queue") == [0.25]


def test_connections_are_used_again_while_they_are_fresh() -> None:
    script = answers(Step(tokens=1), Step(finish="stop"), Step(done=True))
    run, server = on_server(script, asked(20, every=0.5))
    assert [record.outcome for record in run.records] == ["ok"] * 20
    assert (len(server.seen), server.connections) == (20, 1)
    run, server = on_server(script, asked(20, every=3.0))
    assert [record.outcome for record in run.records] == ["ok"] * 20
    assert (len(server.seen), server.connections) == (20, 20)


@pytest.mark.parametrize("said", [None, 12])
def test_a_request_says_how_long_its_answer_will_be_where_the_load_does(said: int | None) -> None:
    script = answers(Step(tokens=1), Step(finish="stop"), Step(done=True))
    _, server = on_server(script, asked(expected_tokens=said))
    assert server.seen[0].body.get("expected_output_tokens") == said
    _, backend = on_backend(script, asked(expected_tokens=said))
    (request,) = backend.requests
    assert request.expected_tokens == said

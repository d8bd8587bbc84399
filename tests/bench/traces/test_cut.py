"""Windows, paces and shares of a trace; and that our own format gives back what was written."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidemill.bench.traces.canonical import write_rows
from tidemill.bench.traces.cut import mean_rate, of_tenant, scaled, sliced, thinned, to_rate
from tidemill.bench.traces.formats import load_trace
from tidemill.bench.traces.row import Segment, TraceRow
from tidemill.bench.traces.trace import Trace
from tidemill.core.errors import SetupError

PIECES = st.lists(st.builds(Segment, st.text(max_size=4), st.integers(1, 600)), max_size=4).map(tuple)
SESSIONS = st.none() | st.sampled_from(["a", "b", "c", "ü \u2028"])


@st.composite
def rows(draw: st.DrawFn) -> TraceRow:
    prefix = draw(PIECES)
    return TraceRow(
        at=draw(st.floats(0, 1e7)),
        prompt_tokens=sum(piece.tokens for piece in prefix) + draw(st.integers(1, 10_000)),
        output_tokens=draw(st.integers(1, 10_000)),
        prefix=prefix,
        session=draw(SESSIONS),
        turn=draw(st.integers(0, 9)),
        think=draw(st.none() | st.floats(0, 1e4)),
        tenant=draw(st.none() | st.sampled_from(["t1", "t2"])),
        priority=draw(st.integers(-3, 3)),
    )


def trace_of(listed: Sequence[TraceRow]) -> Trace:
    return Trace(rows=tuple(sorted(listed, key=lambda row: row.at)), name="made", format="tidemill")


TRACES = st.lists(rows(), min_size=1, max_size=30).map(trace_of)


@given(trace=TRACES)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
def test_what_is_written_is_read_back_exactly(trace: Trace, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with path.open("w", encoding="utf-8") as file:
        write_rows(trace.rows, file)
    again = load_trace(path)
    assert again.rows == trace.rows
    assert again.notes == ()


@given(trace=TRACES, start=st.floats(0, 1e7), duration=st.floats(0, 1e7))
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_window_has_the_requests_that_came_in_it(trace: Trace, start: float, duration: float) -> None:
    found = sliced(trace, start=start, duration=duration)
    inside = [row for row in trace.rows if start <= row.at < start + duration]
    assert [(row.prompt_tokens, row.prefix) for row in found.rows] == [
        (row.prompt_tokens, row.prefix) for row in inside
    ]
    assert [row.at for row in found.rows] == [row.at - start for row in inside]


@given(trace=TRACES, cut=st.integers(0, 30))
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_two_parts_make_the_whole(trace: Trace, cut: int) -> None:
    parts = (sliced(trace, count=cut), sliced(trace, skip=cut))
    assert [row.prompt_tokens for part in parts for row in part.rows] == [row.prompt_tokens for row in trace.rows]
    if parts[1].rows and cut:
        assert parts[1].rows[0].at == 0


def test_a_turn_whose_turn_before_is_cut_off_goes_by_its_time() -> None:
    def turn(at: float, number: int) -> TraceRow:
        think = 1.0 if number else None
        return TraceRow(at=at, prompt_tokens=1, output_tokens=1, session="s", turn=number, think=think)

    whole = trace_of([turn(0, 0), turn(5, 1), turn(9, 2)])
    assert [row.think for row in sliced(whole, start=2).rows] == [None, 1.0]
    assert [row.think for row in sliced(whole).rows] == [None, 1.0, 1.0]


@given(trace=TRACES, speed=st.floats(1e-3, 1e3))
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_faster_trace_is_the_same_in_less_time(trace: Trace, speed: float) -> None:
    fast = scaled(trace, speed)
    for before, after in zip(trace.rows, fast.rows, strict=True):
        assert after.at == before.at / speed
        assert after.think == (None if before.think is None else before.think / speed)
        assert (after.prompt_tokens, after.prefix, after.turn) == (before.prompt_tokens, before.prefix, before.turn)


def test_a_rate_is_that_between_first_and_last_arrival() -> None:
    trace = trace_of([TraceRow(at=at, prompt_tokens=1, output_tokens=1) for at in (2, 3, 10)])
    assert mean_rate(trace) == 0.25
    faster = to_rate(trace, 4.0)
    assert mean_rate(faster) == 4.0
    assert [row.at for row in faster.rows] == [2 / 16, 3 / 16, 10 / 16]
    still = trace_of([TraceRow(at=0, prompt_tokens=1, output_tokens=1)] * 2)
    with pytest.raises(SetupError, match="has no arrivals to scale"):
        to_rate(still, 4.0)
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(SetupError, match="--rate"):
            to_rate(trace, wrong)
        with pytest.raises(SetupError, match="--speed"):
            scaled(trace, wrong)


@given(trace=TRACES, share=st.floats(0.01, 1.0), seed=st.integers(0, 3))
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_thinning_keeps_sessions_whole(trace: Trace, share: float, seed: int) -> None:
    thin = thinned(trace, share, seed=seed)
    kept = {row.session for row in thin.rows if row.session is not None}
    assert [row for row in thin.rows if row.session] == [
        row for row in trace.rows if row.session in kept and row.session
    ]
    assert thin == thinned(trace, share, seed=seed)
    assert set(map(id, thin.rows)) <= set(map(id, thinned(trace, min(1.0, 2 * share), seed=seed).rows))


def test_thinning_keeps_about_the_share() -> None:
    listed = [
        TraceRow(at=place, prompt_tokens=1, output_tokens=1, session=str(place // 4), turn=place % 4)
        for place in range(4000)
    ]
    kept = thinned(trace_of(listed), 0.3, seed=1).rows
    assert len(kept) % 4 == 0
    assert 0.25 < len(kept) / 4000 < 0.35
    assert kept != thinned(trace_of(listed), 0.3, seed=2).rows
    assert thinned(trace_of(listed), 1.0).rows == tuple(listed)
    with pytest.raises(SetupError, match="--thin: 0 is no share"):
        thinned(trace_of(listed), 0.0)


def test_one_tenant() -> None:
    trace = trace_of([TraceRow(at=0, prompt_tokens=1, output_tokens=1, tenant=name) for name in ("a", "b", "a")])
    assert len(of_tenant(trace, "a").rows) == 2
    with pytest.raises(SetupError, match="made has no tenant 'c'; it has 'a', 'b'"):
        of_tenant(trace, "c")


def test_lines_leave_out_what_says_nothing() -> None:
    out = io.StringIO()
    write_rows([TraceRow(at=0.5, prompt_tokens=3, output_tokens=1, prefix=(Segment("a", 2),), turn=1)], out)
    assert out.getvalue() == '{"at":0.5,"prompt_tokens":3,"output_tokens":1,"prefix":[["a",2]],"turn":1}\n'

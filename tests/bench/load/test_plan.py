"""From rows to requests: sessions, tenants, hang-ups, and rows that cannot be."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest

from tidemill.bench.load.options import LoadOptions, ServerOptions
from tidemill.bench.load.plan import parse_cancel, parse_lengths, parse_tenant, requests_of
from tidemill.bench.load.prompts import IdPrompts
from tidemill.bench.load.run import Load
from tidemill.bench.traces.row import Segment, TraceRow
from tidemill.core.errors import ConfigError


def row(at: float = 0.0, prompt: int = 100, output: int = 10, **fields: Any) -> TraceRow:
    return TraceRow(at=at, prompt_tokens=prompt, output_tokens=output, **fields)


def load(rows: list[TraceRow] | None = None, **options: Any) -> Load:
    return LoadOptions(**options).load(IdPrompts(), rows)


def common(a: Any, b: Any) -> int:
    """Tokens that two prompts begin with in common."""
    return next(
        (i for i, (x, y) in enumerate(zip(a.prompt.ids, b.prompt.ids, strict=False)) if x != y), len(a.prompt.ids)
    )


def test_a_trace_keeps_its_times_and_lengths() -> None:
    """Case 70: gaps to the microsecond; case 60: ties, and a gap of an hour at a thousandth of the time."""
    rows = [row(0.0), row(0.002), row(0.003), row(0.007, 50, 5), row(0.014), row(0.014), row(3600.014)]
    made = load(rows, time_scale=0.001).requests
    assert [request.due for request in made] == pytest.approx([r.at / 1000 for r in rows], abs=1e-12)
    assert [(len(r.prompt.ids or ()), r.max_tokens) for r in made] == [(r.prompt_tokens, r.output_tokens) for r in rows]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([row(0), row(-1.0)], "row 1: at must be"),
        ([row(0), row(1), row(math.nan)], "row 2: at must be"),
        ([row(math.inf)], "row 0: at must be"),
        ([row(0), row(5), row(4.9)], "row 2: at 4.9 is before that of the row above, 5"),
        ([row(0, think=-1.0)], "row 0: think"),
    ],
)
def test_times_that_cannot_be_are_refused_with_their_row(rows: list[TraceRow], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load(rows)


def test_a_trace_is_cut_by_number_and_by_scaled_time() -> None:
    rows = [row(float(at)) for at in range(10)]
    assert len(load(rows, requests=3).requests) == 3
    assert len(load(rows, duration=2.0).requests) == 2
    assert len(load(rows, duration=2.0, time_scale=0.5).requests) == 4
    assert len(load(rows, duration=2.0, concurrency=1).requests) == 10
    with pytest.raises(ConfigError, match="no request is left"):
        load([row(5.0)], duration=2.0)


def test_a_later_turn_begins_with_the_conversation_before_it() -> None:
    made = load(
        rate="1", requests=2, turns=3, prompt_tokens="100", output_tokens="20", shared_tokens=30, think=2.0
    ).requests
    assert [len(request.prompt.ids or ()) for request in made] == [100, 220, 340] * 2
    assert [(request.session, request.turn, request.think) for request in made[:3]] == [
        ("session-0", 0, None),
        ("session-0", 1, 2.0),
        ("session-0", 2, 2.0),
    ]
    assert common(made[0], made[1]) == 100
    assert common(made[1], made[2]) == 220
    assert 30 <= common(made[0], made[3]) <= 31


def test_thinking_is_scaled_with_the_trace() -> None:
    rows = [row(0, session="a"), row(1, session="a", turn=1, think=8.0)]
    assert [request.think for request in load(rows, time_scale=0.25).requests] == [None, 2.0]


def test_a_trace_that_says_what_turns_share_is_followed() -> None:
    system = Segment("system", 40)
    told = [
        row(0, 100, session="a", prefix=(system,)),
        row(1, 200, session="a", turn=1, prefix=(system, Segment("a0", 70))),
        row(2, 300, session="a", turn=2, prefix=(system, Segment("a0", 70), Segment("a1", 100))),
    ]
    made = requests_of(told, IdPrompts())
    assert 40 <= common(made[0], made[1]) <= 41
    assert 110 <= common(made[1], made[2]) <= 111
    silent = [row(0, 100, session="a"), row(1, 200, session="a", turn=1), row(2, 150, session="a", turn=2)]
    made = requests_of(silent, IdPrompts())
    assert common(made[0], made[1]) == 100
    assert common(made[1], made[2]) == 149  # a conversation that was cut still ends in something of its own


def test_tenants_share_the_load_and_keep_their_sessions() -> None:
    made = load(
        rate="1",
        requests=600,
        turns=2,
        tenants=("gold=3,key=K,priority=2", "tin"),
        prompt_tokens="4",
        output_tokens="1",
    ).requests
    counts = Counter((request.tenant, request.priority) for request in made)
    assert set(counts) == {("gold", 2), ("tin", 0)}
    assert counts["gold", 2] / len(made) == pytest.approx(0.75, abs=0.05)
    by_session: dict[str | None, set[str | None]] = {}
    for request in made:
        by_session.setdefault(request.session, set()).add(request.tenant)
    assert all(len(names) == 1 for names in by_session.values())
    target = ServerOptions(url="http://h/v1", api_key="default").target(
        "m", LoadOptions(tenants=("a,key=K",)).parsed_tenants()
    )
    assert target.sent_headers("a")["Authorization"] == "Bearer K"
    assert target.sent_headers("b")["Authorization"] == "Bearer default"


def test_a_share_of_the_callers_hangs_up() -> None:
    made = load(concurrency=1, requests=2000, cancel="0.1@20", prompt_tokens="1", output_tokens="1").requests
    assert sum(request.cancel_after == 20 for request in made) / 2000 == pytest.approx(0.1, abs=0.03)
    assert {request.cancel_after for request in made} == {None, 20}


def test_warmup_has_no_token_in_common_with_what_is_measured() -> None:
    made = load(rate="1", requests=5, shared_tokens=100, prompt_tokens="256", warmup=2)
    assert [len(request.prompt.ids or ()) for request in made.warmup] == [256, 256]
    assert all(common(warm, request) <= 1 for warm in made.warmup for request in made.requests)


def test_the_same_seed_gives_the_same_load() -> None:
    options: dict[str, Any] = {"rate": "3", "requests": 20, "prompt_tokens": "5..50", "tenants": ("a", "b"), "turns": 2}
    assert load(**options, seed=1).requests == load(**options, seed=1).requests
    assert load(**options, seed=1).requests != load(**options, seed=2).requests


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "either rate"),
        ({"rate": "1", "concurrency": 2, "requests": 1}, "either rate"),
        ({"rate": "1"}, "how many requests"),
        ({"concurrency": 2}, "requests: say how many"),
        ({"concurrency": 0, "requests": 1}, "concurrency must be at least 1"),
        ({"rate": "1", "requests": 0}, "requests must be at least 1"),
        ({"rate": "1", "duration": -1.0}, "duration"),
        ({"rate": "1", "duration": math.nan}, "duration"),
        ({"rate": "1", "requests": 1, "think": -1.0}, "think"),
        ({"rate": "1", "requests": 1, "turns": 0}, "turns"),
        ({"rate": "1", "requests": 1, "time_scale": 0.0}, "time_scale"),
        ({"rate": "1", "requests": 1, "prompt_tokens": "10", "shared_tokens": 11}, "shared_tokens"),
        ({"rate": "1", "requests": 1, "prompt_tokens": "0"}, "prompt_tokens"),
        ({"rate": "1", "requests": 1, "output_tokens": "9..3"}, "output_tokens"),
        ({"rate": "1", "requests": 1, "tenants": ("a", "a")}, "name of its own"),
        ({"rate": "1", "requests": 1, "cancel": "2@1"}, "cancel"),
        ({"rate": "1", "requests": 1, "max_lateness": 0.0}, "max_lateness"),
        ({"rate": "1", "requests": 1, "burstiness": 0.0, "arrivals": "gamma"}, "burstiness"),
    ],
)
def test_loads_that_cannot_be_are_refused_by_the_name_of_the_option(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        LoadOptions(**options).check(traced=False)


def test_a_trace_has_its_own_arrivals() -> None:
    with pytest.raises(ConfigError, match="rate"):
        load([row()], rate="3")


@pytest.mark.parametrize("text", ["", "=1", "a=0", "a=x", "a,key=", "a,colour=red", "a,priority=high", "a=-1", "a=inf"])
def test_tenants_that_cannot_be(text: str) -> None:
    with pytest.raises(ConfigError, match="tenant must be like"):
        parse_tenant(text)


@pytest.mark.parametrize("text", ["", "0.1", "1.1@5", "-0.1@5", "0.1@0", "x@5", "nan@3"])
def test_hang_ups_that_cannot_be(text: str) -> None:
    with pytest.raises(ConfigError, match="cancel"):
        parse_cancel(text)


@pytest.mark.parametrize("text", ["", "x", "-1", "1..", "5..4", "1.5", "99999999999"])
def test_lengths_that_cannot_be(text: str) -> None:
    with pytest.raises(ConfigError, match="prompt_tokens"):
        parse_lengths(text, "prompt_tokens")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"body": "{"}, "body"),
        ({"body": "[]"}, "body"),
        ({"header": ("no colon",)}, "header"),
        ({"header": ("a:b\r\nc:d",)}, "header"),
        ({"url": "nonsense"}, "url"),
        ({"endpoint": "embeddings"}, "endpoint"),
    ],
)
def test_servers_that_cannot_be(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ServerOptions(**{"url": "http://h/v1", **fields}).target("m")

"""The served rows: what is asked of each server, and which builds are tried."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.race.load import question
from benchmarks.race.rows import served_rows
from benchmarks.race.served import fastest_builds, figures_of, load_of

ALONE, SHARED = served_rows()


def prompts(served: Any, turn: int) -> list[list[int]]:
    ask = {
        name: getattr(served, name) for name in ("clients", "requests", "prompt_tokens", "shared_tokens", "max_tokens")
    }
    load = load_of({**ask, "turn": turn}, "")
    return [question(load, number)[1]["prompt"] for number in range(load.requests)]  # type: ignore[misc]


def test_no_prompt_comes_twice_in_all_turns_and_each_turn_shares_other_tokens() -> None:
    for served, length in ((ALONE, 256), (SHARED, 576)):
        every = [tuple(prompt) for turn in range(-1, 5) for prompt in prompts(served, turn)]
        assert len(every) == 16 + 5 * served.requests == len(set(every))
        assert {len(prompt) for prompt in every} == {length}
        assert len({prompt[: served.shared_tokens] for prompt in every}) == (6 if served.shared_tokens else 1)
        assert len({prompt[served.shared_tokens : served.shared_tokens + 16] for prompt in every}) == len(every)


def test_output_and_time_to_the_first_token() -> None:
    assert figures_of(640, 2.0, [0.1 * number for number in range(1, 11)]) == {
        "rate": 320.0,
        "ttft_p50": 500.0,
        "ttft_p99": 1000.0,
    }
    assert figures_of(0, 2.0, []) == {"rate": 0.0, "ttft_p50": None, "ttft_p99": None}


def test_the_build_that_was_fastest_at_sixteen_streams_is_the_one_that_serves() -> None:
    builds = [Path("/x/amx/bin"), Path("/x/avx2/bin")]
    rows = [
        {"work": "decode 1 at 256 m", "peers": {"llama.cpp": {"settings": "avx2 fa=on b=2048"}}},
        {"work": "decode 16 at 256 m", "peers": {"llama.cpp": {"settings": "amx fa=on b=2048"}}},
        {"work": "decode 16 at 2048 m", "peers": {"A": {"settings": ""}}},
    ]
    assert fastest_builds(builds, rows) == builds[:1]
    assert fastest_builds(builds, rows[:1]) == builds

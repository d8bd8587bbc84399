"""Taking turns: who runs when, what is compared with what, and what a failure leaves."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.race.figures import plain_row, race_row
from benchmarks.race.report import text
from benchmarks.race.results import Results
from benchmarks.race.rows import Row, Wanted
from benchmarks.race.side import Ask, Contender, Figures, SideFailed, Worker, output_of
from benchmarks.race.steps import worth_trying
from benchmarks.race.turns import Race, Stable, alternate
from tidemill.bench.work import prefill_work

ASK = {"do": "work", "streams": 1, "context": 0, "tokens": 512, "seconds": 0.1}


class Scripted:
    """A side with the rates that it will have, the first one of its trial; None fails."""

    def __init__(self, name: str, rates: list[float | None], log: list[str]) -> None:
        self._name = name
        self._rates = iter(rates)
        self._log = log

    def turn(self, ask: Ask) -> Figures:
        self._log.append(self._name)
        rate = next(self._rates)
        if rate is None:
            raise SideFailed("it broke")
        return {"rate": rate, "turn": ask["turn"]}

    def close(self) -> None:
        self._log.append(f"end of {self._name}")


def scripted(log: list[str], engine: str, settings: str, rates: list[float | None]) -> Contender:
    return Contender(engine=engine, settings=settings, start=lambda: Scripted(f"{engine} {settings}", rates, log))


def raced(log: list[str], ours: list[float | None], *contenders: Contender, turns: int = 3) -> Race:
    return alternate(ASK, lambda: Scripted("ours", ours, log), contenders, stable=Stable(), turns=turns)


def test_each_engines_fastest_settings_take_turns_with_ours() -> None:
    log: list[str] = []
    race = raced(
        log,
        [90.0, 100.0, 400.0],
        scripted(log, "A", "slow", [10.0]),
        scripted(log, "A", "fast", [20.0, 50.0, 60.0, 10.0]),
        scripted(log, "B", "", [19.0, 25.0, 24.0, 26.0]),
    )
    turn = ["ours", "A fast", "B "]
    assert log == ["A slow", "A fast", "end of A slow", "B ", *turn, *turn, *turn]
    assert race.settings == {"A": "fast", "B": ""}
    assert race.tried == {"A slow": 10.0, "A fast": 20.0, "B": 19.0}
    row = race_row("work", race, Wanted(floor=1.5, goal=2.5))
    # Medians of the turns, without the trials: 100 of 90, 100, 400; 50 of 50, 60, 10.
    assert (row["ours"], row["peer"], row["peer_value"], row["ratio"]) == (100.0, "A", 50.0, 2.0)
    assert row["peers"]["B"] == {"settings": "", "value": 25.0, "ratio": 4.0}
    assert (row["floor_met"], row["goal_met"], row["turns"]) == (True, False, 3)


def test_a_peer_that_fails_leaves_a_reason_and_the_others() -> None:
    log: list[str] = []
    race = raced(
        log,
        [100.0] * 3,
        scripted(log, "A", "", [10.0, 10.0, None]),
        scripted(log, "B", "broken", [None]),
        scripted(log, "B", "", [9.0, 20.0, 20.0, 20.0]),
    )
    assert race.reasons == {"A": "turn 2: it broke", "B broken": "it broke"}
    row = race_row("work", race, Wanted())
    assert (row["peer"], row["ratio"], list(row["peers"])) == ("B", 5.0, ["B"])
    assert "end of A" in " ".join(log)
    table = text([row])
    assert "no figure of A for work: turn 2: it broke" in table
    assert "no figure of B broken for work: it broke" in table


def test_ours_failing_is_a_row_with_a_reason() -> None:
    log: list[str] = []
    race = raced(log, [1.0, None], scripted(log, "A", "", [10.0, 10.0, 10.0]))
    row = race_row("work", race, Wanted(floor=1.0))
    assert row["reasons"] == {"ours": "it broke"}
    assert log.count("A ") == 2  # its trial and the first turn


def test_smaller_is_better_for_times() -> None:
    race = Race(ours=[{"ttft": 200.0}], peers={"A": [{"ttft": 300.0}], "B": [{"ttft": 100.0}]})
    row = race_row("work", race, Wanted(), unit="ms", figure="ttft", lower=True)
    assert (row["peer"], row["ratio"], row["better"]) == ("B", 0.5, "lower")
    assert row["peers"]["A"]["ratio"] == 1.5


@pytest.mark.parametrize(
    ("peers", "met", "goal"),
    [
        ({"llama.cpp": 50.0}, True, False),
        ({"llama.cpp": 60.0}, False, False),
        ({"llama.cpp": 50.0, "other": 120.0}, False, False),  # twice llama.cpp, yet not above every peer
        ({"llama.cpp": 40.0, "other": 90.0}, True, True),
        ({"other": 10.0}, None, None),
    ],
)
def test_a_floor_against_one_engine_asks_that_none_is_faster(
    peers: dict[str, float], met: bool | None, goal: bool | None
) -> None:
    race = Race(ours=[{"rate": 100.0}], peers={name: [{"rate": rate}] for name, rate in peers.items()})
    row = race_row("work", race, Wanted(floor=1.8, goal=2.5, against="llama.cpp"))
    assert (row["floor_met"], row["goal_met"]) == (met, goal)
    assert row["ratio"] == pytest.approx(100.0 / max(peers.values()), abs=1e-3)


@pytest.mark.parametrize(("share", "met"), [(0.03, "goal"), (0.05, "floor"), (0.09, "no")])
def test_limits_of_our_own_figure(share: float, met: str) -> None:
    wanted = Wanted(floor=0.08, goal=0.04, floor_of="ours", goal_of="ours", lower=True)
    row = plain_row("host time", "of the step", share, wanted)
    head, line = text([row]).splitlines()
    assert line.split()[-2] == met, head


def test_results_outlive_a_run_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    first = Results(path, resume=False)
    first.add("one", {"rows": [{"work": "one"}]})
    first.add("two", {"rows": [{"work": "two", "reasons": {"ours": "out of memory"}}]})
    first.add("three", {"rows": [], "failed": "KeyError"})
    with path.open("a") as file:
        file.write('{"measurement": "four", "ro')
    again = Results(path, resume=True)
    assert [again.has(name) for name in ("one", "two", "three", "four")] == [True, False, False, False]
    again.add("four", {"rows": [{"work": "four"}]})
    again.add("two", {"rows": [{"work": "two"}]})
    last = Results(path, resume=True)
    assert [row["work"] for row in last.all("rows")] == ["one", "two", "four"]
    assert all(last.has(name) for name in ("one", "two", "four"))


def test_an_earlier_file_is_kept_beside_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    for number in range(3):
        Results(path, resume=False).add(str(number), {"rows": []})
    assert sorted(file.name for file in tmp_path.iterdir()) == ["r.1.jsonl", "r.2.jsonl", "r.jsonl"]
    assert '"0"' in (tmp_path / "r.1.jsonl").read_text()


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import sys; sys.exit('no such model')", "exit code 1: no such model"),
        ("import os; os.kill(os.getpid(), 4)", "ended by SIGILL"),
        ('print(\'{"error": "ValueError: odd"}\', flush=True); input()', "ValueError: odd"),
    ],
)
def test_why_a_driver_did_not_start(program: str, reason: str) -> None:
    with pytest.raises(SideFailed, match=reason):
        Worker([sys.executable, "-c", program])


def test_why_a_driver_ended_in_a_turn() -> None:
    program = "import sys; print('{}', flush=True); input(); sys.exit('out of room')"
    worker = Worker([sys.executable, "-c", program])
    with pytest.raises(SideFailed, match="exit code 1: out of room"):
        worker.turn(ASK)
    with pytest.raises(SideFailed, match="out of room"):
        worker.turn(ASK)
    worker.close()


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: output_of(["/nowhere/tool"]), "No such file"),
        (lambda: output_of(["sh", "-c", "echo gone >&2; exit 3"]), "exit code 3: gone"),
        (lambda: output_of(["sh", "-c", "kill -ILL $$"]), "ended by SIGILL"),
        (lambda: output_of(["sleep", "30"], limit=0.2), "took more than 0 s"),
        (lambda: output_of(["true"]), "exit code 0: no output"),
    ],
)
def test_why_a_tool_has_no_figure(call: Callable[[], str], reason: str) -> None:
    with pytest.raises(SideFailed, match=reason):
        call()


def test_an_engine_far_behind_takes_no_turns_unless_it_always_does() -> None:
    for always, engines in ((None, ["A"]), ("C", ["A", "C"])):
        log: list[str] = []
        contenders = [
            scripted(log, "A", "", [100.0, 100.0]),
            scripted(log, "B", "", [79.0, 100.0]),
            scripted(log, "C", "", [10.0, 10.0]),
        ]
        ours = Scripted("ours", [100.0], log)
        race = alternate(ASK, lambda ours=ours: ours, contenders, stable=Stable(), turns=1, always=always)
        assert list(race.peers) == engines
        assert race.tried == {"A": 100.0, "B": 79.0, "C": 10.0}
        assert "end of B " in log


def test_what_was_far_behind_is_not_tried_on_the_next_model() -> None:
    log: list[str] = []
    every = [
        scripted(log, "llama.cpp", "fast", []),
        scripted(log, "llama.cpp", "slow", []),
        scripted(log, "A", "", []),
        scripted(log, "B", "", []),
        scripted(log, "C", "new", []),
    ]
    row = Row(model="large", work=prefill_work(512), wanted=Wanted())
    tried = {"llama.cpp fast": 40.0, "llama.cpp slow": 31.0, "A": 100.0, "B": 49.0}
    earlier = [
        {"work": "decode 1 at 256 small", "tried": {"A": 1.0, "B": 100.0}},
        {"work": "prefill 512 small", "tried": tried},
    ]
    assert [one.name for one in worth_trying(every, row, earlier)] == ["llama.cpp fast", "A", "C new"]
    assert len(worth_trying(every, row, [{"work": row.name, "tried": tried}])) == len(every)
    assert len(worth_trying(every, row, [])) == len(every)

"""What is left of an engine process, and the reports made of it."""

from __future__ import annotations

import json
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.engine.scripted import make_loop, request, run
from tidemill.core.clock import ManualClock
from tidemill.core.errors import Quarantined
from tidemill.engine.black_box import BlackBox, Pulse, Remains, StepRecord
from tidemill.engine.crash_reports import Crash, CrashReports, state_folder
from tidemill.engine.quarantine import DEATHS, SECONDS, Quarantine
from tidemill.engine.tickets import make_ticket, ticket_number


def step(number: int, **fields: Any) -> StepRecord:
    sizes = {"rows": 2, "tokens": 9, "drawn": 1, "running": 3, "waiting": 4, "kv_held": 5}
    return StepRecord(step=number, began=float(number), seconds=None, **{**sizes, **fields})


@pytest.fixture
def box() -> Any:
    made = BlackBox.made()
    yield made
    made.close()


def test_the_last_steps_are_there_in_order_and_the_newest_has_not_ended(box: BlackBox) -> None:
    for number in range(200):
        box.begin(step(number, tokens=number), [number, 7])
        if number < 199:
            box.end(0.5)
    found = box.remains()
    assert [record.step for record in found.steps] == list(range(136, 200))
    assert [record.tokens for record in found.steps] == list(range(136, 200))
    assert [record.seconds for record in found.steps] == [0.5] * 63 + [None]
    assert found.tickets == {199, 7}


def test_progress_and_steps_do_not_disturb_each_other(box: BlackBox) -> None:
    box.set_progress(5)
    box.begin(step(0), [])
    assert box.progress == 5
    box.set_progress(2**64 + 6)
    assert box.progress == 6
    assert len(box.remains().steps) == 1


def test_more_requests_than_there_is_room_for_are_cut(box: BlackBox) -> None:
    box.begin(step(0), range(10_000))
    assert box.remains().tickets == frozenset(range(4096))


def test_the_steps_of_a_loop_in_sizes(box: BlackBox) -> None:
    loop = make_loop(max_step_tokens=16)
    loop.record(box)
    run(loop, request(make_ticket("a", 12), 20, max_tokens=2, ignore_eos=True))
    first, second, third = box.remains().steps
    assert [(one.rows, one.tokens, one.drawn) for one in (first, second, third)] == [(1, 16, 0), (1, 4, 1), (1, 1, 1)]
    assert [one.kv_held for one in (first, second, third)] == [1, 2, 2]
    assert all(one.seconds is not None for one in (first, second, third))
    assert box.remains().tickets == {12}


def test_the_pulse_says_how_far_it_is_while_a_step_runs(box: BlackBox) -> None:
    seen = threading.Event()
    values = iter(range(1, 10**9))

    def progress() -> int:
        value = next(values)
        if value > 3:
            seen.set()
        return value

    pulse = Pulse(box, progress, 0.001)
    assert seen.wait(30)
    pulse.close()
    assert box.progress >= 3


@pytest.mark.parametrize(
    ("ticket", "number"), [("a#b#3", 3), ("a", -1), ("a#", -1), ("a#²", -1), ("a#" + "9" * 30, -1)]
)
def test_ticket_numbers(ticket: str, number: int) -> None:
    assert ticket_number(ticket) == number


def crash(**fields: Any) -> Crash:
    left = Remains(steps=(step(1),), tickets=frozenset({3}), dump="Fatal Python error\n  File x")
    known = {"pid": 77, "how": "was ended by SIGSEGV", "lived_seconds": 2.5, "open_requests": 1, "remains": left}
    return Crash(**{**known, **fields})


def test_a_report_has_what_is_needed_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "crashes"
    reports = CrashReports(folder, most=3, settings={"model": {"path": "m.gguf"}}, wall_time=lambda: 0.0)
    path = reports.write(crash())
    assert path.name == "crash-19700101T000000Z-77.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    found = json.loads(path.read_text())
    assert found["how"] == "was ended by SIGSEGV"
    assert found["traceback"] == ["Fatal Python error", "  File x"]
    assert found["steps"][0]["tokens"] == 9
    assert found["settings"] == {"model": {"path": "m.gguf"}}
    assert found["machine"]["cpus"] >= 1
    assert found["version"]
    assert "prompts" not in found


def test_the_folder_stays_small_and_keeps_what_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "notes.json").write_text("{}")
    now = iter(range(10))
    reports = CrashReports(tmp_path, most=3, settings={}, wall_time=lambda: float(next(now)))
    written = [reports.write(crash(pid=pid)) for pid in range(8)]
    assert sorted(tmp_path.iterdir()) == sorted([*written[-3:], tmp_path / "notes.json"])


def test_the_folder_is_the_users_own_for_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert state_folder() == tmp_path / "tidemill"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert state_folder() == Path.home() / ".local" / "state" / "tidemill"


def test_a_prompt_that_the_engine_died_of_again_is_refused_and_others_are_not() -> None:
    clock = ManualClock()
    quarantine = Quarantine(clock)
    for death in range(DEATHS):
        quarantine.check([1, 2, 3])
        quarantine.died([[1, 2, 3], [1, 2, 3], [4, death]])
    quarantine.check([1, 2])
    quarantine.check([4, 0])
    with pytest.raises(Quarantined, match="2 times while it computed this prompt; it is not tried again for 600 s"):
        quarantine.check([1, 2, 3])
    clock.advance(SECONDS)
    quarantine.check([1, 2, 3])


def test_old_deaths_do_not_count() -> None:
    clock = ManualClock()
    quarantine = Quarantine(clock)
    for _ in range(5):
        quarantine.died([[1]])
        clock.advance(SECONDS)
        quarantine.check([1])


def test_suspects_are_bounded() -> None:
    quarantine = Quarantine(ManualClock())
    quarantine.died([[-1]])
    quarantine.died([k] for k in range(10_000))
    quarantine.died([[-1]])
    quarantine.check([-1])
    assert len(quarantine._suspects) == 4096

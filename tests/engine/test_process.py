"""The engine in a process of its own: kept alive, told when stuck, and gone when its server is."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from tests.engine.scripted import config, make_loop, request, run, tokens
from tidemill.core.errors import (
    EngineDied,
    InvalidRequest,
    ModelLoadError,
    Overloaded,
    Quarantined,
    SetupError,
    TidemillError,
    Unavailable,
)
from tidemill.core.tokens import FinishReason, TokenDelta, TokenRequest
from tidemill.engine import client
from tidemill.engine.client import ProcessEngine
from tidemill.engine.crash_reports import CrashReports
from tidemill.engine.process import HEARTBEAT_SECONDS, serve
from tidemill.engine.supervisor import RestartPolicy
from tidemill.engine.wire import Add, Channel, Inbox

ROOT = Path(__file__).parents[2]
FACTORY = "tests.engine.scripted:make"
FAST = RestartPolicy(first_delay=0.01, max_fast_deaths=3)


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", ""), str(ROOT / "src")]))


@asynccontextmanager
async def engine(
    path: str = "hash", *, crashes: CrashReports | None = None, **settings: object
) -> AsyncIterator[ProcessEngine]:
    one = ProcessEngine(config(path, **settings), factory=FACTORY, policy=FAST, crashes=crashes)  # type: ignore[arg-type]
    await one.start()
    try:
        yield one
    finally:
        await one.close()


async def collect(one: ProcessEngine, asked: TokenRequest) -> list[TokenDelta]:
    return [delta async for delta in one.generate(asked)]


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not await condition():
        assert time.monotonic() < end, "it did not happen"
        await asyncio.sleep(0.02)


async def is_ready(one: ProcessEngine) -> bool:
    return await one.ready() is None


async def test_the_answers_are_those_of_the_loop_itself() -> None:
    asked = [request(f"r{k}", 20 + k, max_tokens=30, seed=k, n=1 + k % 2, logprobs=1) for k in range(8)]
    expected = run(make_loop(), *asked)
    async with engine() as one:
        answers = await asyncio.gather(*(collect(one, each) for each in asked))
        assert await one.ready() is None
        for each, deltas in zip(asked, answers, strict=True):
            for choice in range(each.sampling.n):
                mine = [delta for delta in deltas if delta.choice == choice]
                assert mine == expected[each.request_id, choice]
        stats = one.stats()
        assert (stats.running, stats.waiting, stats.kv_blocks_held, stats.restarts_total) == (0, 0, 0, 0)


def test_the_process_waits_with_a_batch_that_waits_to_become_full() -> None:
    class Wire:
        def __init__(self) -> None:
            self.open = True
            self.timeouts: list[float] = []

        def receive(self, timeout: float) -> list[Inbox]:
            self.timeouts.append(timeout)
            self.open = len(self.timeouts) < 3
            return [Inbox([Add(request("a", 5, max_tokens=3))])] if len(self.timeouts) == 1 else []

        def send(self, _: object) -> None:
            pass

    wire = Wire()
    serve(make_loop(policy="dynamic", batch_wait=60.0), cast("Channel", wire))
    assert wire.timeouts == [HEARTBEAT_SECONDS] * 3


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


async def test_a_process_begun_before_the_loop_is_the_one_that_is_started() -> None:
    before = children()
    with ProcessEngine(config("hash"), factory=FACTORY).begun() as one:
        (begun,) = children() - before
        await one.start()
        assert one.pid == begun
        assert len(await collect(one, request("a", 20, max_tokens=5, ignore_eos=True))) == 5
        await one.close()
    assert children() == before


def test_a_process_begun_in_vain_ends_with_the_block() -> None:
    before = children()
    one = ProcessEngine(config("hash"), factory=FACTORY)
    with suppress(InvalidRequest), one.begun():
        assert len(children() - before) == 1
        raise InvalidRequest("something else is wrong")
    assert children() == before


async def test_a_start_that_is_cancelled_at_once_leaves_no_process() -> None:
    before = children()
    one = ProcessEngine(config("hash"), factory=FACTORY)
    for turns in range(4):
        task = asyncio.create_task(one.start())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert children() == before


async def test_closing_an_iterator_gives_its_blocks_back() -> None:
    async with engine() as one:
        async with aclosing(one.generate(request("a", 20, max_tokens=800, n=3, ignore_eos=True))) as deltas:
            async for delta in deltas:
                assert delta.request_id == "a"
                break
        waiting = asyncio.create_task(collect(one, request("b", 20, max_tokens=800, ignore_eos=True)))
        await until(lambda: _true(one.stats().running == 1))
        waiting.cancel()

        async def empty() -> bool:
            return one.stats().kv_blocks_held == 0 and one.stats().requests_finished.get("abort") == 4

        await until(empty)


async def _true(value: bool) -> bool:
    return value


async def test_abort_ends_the_stream_without_a_further_delta() -> None:
    async with engine() as one:
        asked = request("a", 20, max_tokens=800, n=2, ignore_eos=True)
        deltas = []
        async for delta in one.generate(asked):
            deltas.append(delta)
            if len(deltas) == 2:
                one.abort("a", 0)
            if len(deltas) == 6:
                one.abort("a")
        assert [delta.choice for delta in deltas[2:]].count(0) == 0
        assert all(delta.finish_reason is None for delta in deltas)


async def test_killed_in_mid_stream_each_of_8_streams_gets_one_error_and_the_next_request_works() -> None:
    async with engine() as one:
        first = one.pid
        asked = [request(f"r{k}", 20, max_tokens=800, ignore_eos=True) for k in range(8)]
        tasks = [asyncio.create_task(collect(one, each)) for each in asked]
        await until(lambda: _true(one.stats().running == 8))
        assert first is not None
        os.kill(first, signal.SIGKILL)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results] == [EngineDied] * 8
        assert "SIGKILL" in str(results[0])
        reason = await one.ready()
        assert reason is not None
        assert "SIGKILL" in reason
        with pytest.raises(Unavailable, match="being started again"):
            await collect(one, request("too early", 3))
        await until(lambda: is_ready(one))
        assert one.pid != first
        assert one.stats().restarts_total == 1
        again = request("again", 20, max_tokens=5, seed=3)
        assert tokens(await collect(one, again)) == tokens(run(make_loop(), again)["again", 0])


async def test_values_that_cannot_travel_are_their_own_callers_mistake() -> None:
    async with engine() as one:
        good = asyncio.create_task(collect(one, request("good", 20, max_tokens=5)))
        bad = asyncio.create_task(collect(one, request("bad", 20, max_tokens=5, stop=(object(),))))
        odd = asyncio.create_task(collect(one, request("\ud800", [1, 2], max_tokens=5)))
        results = await asyncio.gather(good, bad, odd, return_exceptions=True)
        assert [type(result) for result in results] == [list, InvalidRequest, UnicodeEncodeError]
        assert one.stats().restarts_total == 0


async def test_the_length_that_callers_were_told_of_holds_after_a_restart(tmp_path: Path) -> None:
    """As where memory decides the length, and there is less of it the second time."""
    async with engine(f"shrinks:{tmp_path / 'starts'}") as one:
        assert one.info.max_model_len == 99
        assert one.pid is not None
        os.kill(one.pid, signal.SIGKILL)
        await until(lambda: _true(one.stats().restarts_total == 1))
        assert one.info.max_model_len == 99
        answer = await collect(one, request("a", 9, max_tokens=90, ignore_eos=True))
        assert len(tokens(answer)) == 90


async def test_a_stopped_process_is_told_as_stuck_and_is_well_again_when_it_goes_on() -> None:
    async with engine(stuck_seconds=1.0) as one:
        task = asyncio.create_task(collect(one, request("a", 20, max_tokens=300, ignore_eos=True)))
        await until(lambda: _true(one.stats().running == 1))
        assert one.pid is not None
        os.kill(one.pid, signal.SIGSTOP)
        await asyncio.sleep(1.2)
        reason = await one.ready()
        assert reason is not None
        assert "stuck" in reason
        assert "1 requests wait" in reason
        with pytest.raises(Unavailable, match="stuck"):
            await collect(one, request("b", 3))
        os.kill(one.pid, signal.SIGCONT)
        assert len(tokens(await task)) == 300
        assert await one.ready() is None


async def test_an_idle_engine_stays_ready() -> None:
    async with engine(stuck_seconds=2.0) as one:
        await asyncio.sleep(2.5)
        assert await one.ready() is None


async def test_a_process_that_stays_stuck_is_killed_and_started_again() -> None:
    async with engine(stuck_seconds=0.7) as one:
        first = one.pid
        task = asyncio.create_task(collect(one, request("a", 20, max_tokens=300, ignore_eos=True)))
        await until(lambda: _true(one.stats().running == 1))
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        with pytest.raises(EngineDied, match="did not answer and was killed"):
            await task
        await until(lambda: is_ready(one))
        assert one.pid != first
        assert len(tokens(await collect(one, request("b", 3, max_tokens=4)))) == 4


async def test_a_start_that_is_given_up_leaves_no_process() -> None:
    one = ProcessEngine(config("loads for ever"), factory=FACTORY)
    with pytest.raises(Unavailable, match="has not been started"):
        await collect(one, request("a", 3))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await one.start()
    await one.close()
    assert psutil.Process().children() == []


def test_it_runs_on_uvloop_too() -> None:
    import uvloop

    async def story() -> list[int]:
        async with engine() as one:
            return tokens(await collect(one, request("a", 20, max_tokens=9, seed=1)))

    assert uvloop.run(story()) == tokens(run(make_loop(), request("a", 20, max_tokens=9, seed=1))["a", 0])


async def test_a_hanging_step_does_not_keep_close_waiting() -> None:
    async with engine("hangs", stuck_seconds=0.8) as one:
        task = asyncio.create_task(collect(one, request("a", 20)))
        await asyncio.sleep(1.0)
        assert "stuck" in (await one.ready() or "")
        pid = one.pid
        begin = time.monotonic()
    assert time.monotonic() - begin < 5.0
    assert pid is not None
    assert not psutil.pid_exists(pid)
    with pytest.raises(EngineDied, match="closed"):
        await task


async def test_a_broken_executor_costs_its_requests_then_the_process_then_it_gives_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("CRITICAL")
    async with engine("raises") as one:
        for life in range(3):
            await until(lambda: is_ready(one))
            assert one.stats().restarts_total == life
            for _ in range(2):
                (delta,) = await collect(one, request(f"a{life}", 3))
                assert delta.finish_reason is FinishReason.ERROR
            with pytest.raises(EngineDied, match="exit code 1"):
                await collect(one, request(f"a{life}", 3))
        with pytest.raises(EngineDied, match="3 times in a row"):
            await collect(one, request("a", 3))
        assert "3 times in a row" in (await one.ready() or "")


async def test_a_step_that_takes_long_and_goes_on_is_no_reason_to_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes half as long again as a silent engine is let live."""
    monkeypatch.setattr(client, "KILL_FACTOR", 2.0)
    async with engine("slow:4.5", stuck_seconds=1.5) as one:
        first = one.pid
        task = asyncio.create_task(collect(one, request("a", 3, max_tokens=1)))
        await asyncio.sleep(3.5)
        assert await one.ready() is None
        assert len(tokens(await task)) == 1
        assert (one.pid, one.stats().restarts_total) == (first, 0)


def reports(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)]


async def test_a_step_that_hangs_ends_with_one_error_a_new_engine_and_where_it_hung(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    crashes = CrashReports(tmp_path / "crashes", most=5, settings={})
    async with engine("hangs", stuck_seconds=0.5, crashes=crashes) as one:
        first = one.pid
        with pytest.raises(EngineDied, match=r"exit code|killed"):
            await collect(one, request("a", 20))
        await until(lambda: is_ready(one))
        assert one.pid != first
    (report,) = reports(tmp_path / "crashes")
    assert any("in collect" in line for line in report["traceback"]), report["traceback"]
    assert report["steps"][-1] | {"began": 0} == {
        "step": 0, "began": 0, "seconds": None, "rows": 1, "tokens": 20, "drawn": 1, "running": 1, "waiting": 0,
        "kv_held": 2,
    }  # fmt: skip
    (said,) = [record.getMessage() for record in caplog.records if "crash-" in record.getMessage()]
    assert said.endswith(f"see {next((tmp_path / 'crashes').iterdir())}")


@pytest.mark.parametrize("prompts", [False, True])
async def test_a_request_that_the_engine_dies_of_is_refused_the_third_time_and_others_are_served(
    tmp_path: Path, prompts: bool
) -> None:
    crashes = CrashReports(tmp_path / "crashes", most=5, settings={}, prompts=prompts)
    poison = [666, 1, 2]
    async with engine("goes down with 666", crashes=crashes) as one:
        for death in range(2):
            with pytest.raises(EngineDied, match="SIGSEGV"):
                await collect(one, request(f"p{death}", poison))
            await until(lambda: is_ready(one))
        with pytest.raises(Quarantined, match="died 2 times"):
            await collect(one, request("p2", poison))
        assert len(tokens(await collect(one, request("b", 5, max_tokens=4, ignore_eos=True)))) == 4
        assert one.stats().restarts_total == 2
    first, second = reports(tmp_path / "crashes")
    for report in (first, second):
        assert report["how"] == "was ended by SIGSEGV"
        assert "Fatal Python error: Segmentation fault" in report["traceback"][0]
        assert any("_segfault_at_666" in line for line in report["traceback"])
        assert report["open_requests"] == 1
        assert report.get("prompts") == ([poison] if prompts else None)
        assert "666" not in json.dumps({**report, "prompts": None, "traceback": None, "machine": None, "steps": None})


async def test_what_the_loop_raises_is_in_the_report(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")
    crashes = CrashReports(tmp_path / "crashes", most=5, settings={})
    async with engine("raises", crashes=crashes) as one:
        for _ in range(2):
            await collect(one, request("a", 3))
        with pytest.raises(EngineDied):
            await collect(one, request("a", 3))
    (report,) = reports(tmp_path / "crashes")
    assert report["traceback"][-1] == "OSError: broken for good"


async def test_a_report_that_cannot_be_written_keeps_nobody_from_starting_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    async with engine(crashes=CrashReports(tmp_path / "file", most=5, settings={})) as one:
        assert one.pid is not None
        os.kill(one.pid, signal.SIGKILL)
        await until(lambda: _true(one.stats().restarts_total == 1))
    assert any("no crash report" in record.getMessage() for record in caplog.records)


async def test_a_life_leaves_no_descriptor_open() -> None:
    async with engine() as one:
        await collect(one, request("a", 3, max_tokens=1))
    before = psutil.Process().num_fds()
    for _ in range(2):
        async with engine() as one:
            await collect(one, request("a", 3, max_tokens=1))
    assert psutil.Process().num_fds() == before


@pytest.mark.parametrize(
    ("path", "kind", "message"),
    [
        ("missing", ModelLoadError, "missing: no such file"),
        ("bug", TidemillError, "ZeroDivisionError: a bug"),
        ("dies while loading", SetupError, r"was ended by SIGKILL \(out of memory\?\) while it loaded"),
    ],
)
async def test_what_stops_the_start_is_raised_as_the_same_error(
    path: str, kind: type[TidemillError], message: str
) -> None:
    one = ProcessEngine(config(path), factory=FACTORY)
    with pytest.raises(kind, match=message) as caught:
        await one.start()
    assert type(caught.value) is kind
    assert await one.ready() == "the engine has not been started"
    await one.close()
    assert psutil.Process().children() == []


async def test_a_full_queue_is_overloaded() -> None:
    async with engine(max_running=1, max_waiting=2) as one:
        tasks = [
            asyncio.create_task(collect(one, request(f"r{k}", 3, max_tokens=20, ignore_eos=True))) for k in range(10)
        ]
        results = await asyncio.gather(*tasks, return_exceptions=True)
        refused = [result for result in results if isinstance(result, Overloaded)]
        answered = [result for result in results if isinstance(result, list)]
        assert len(answered) + len(refused) == 10
        assert 2 <= len(answered) <= 3
        assert all(len(tokens(result)) == 20 for result in answered)


async def test_terminal_signals_are_the_servers_business() -> None:
    async with engine() as one:
        assert one.pid is not None
        task = asyncio.create_task(collect(one, request("a", 20, max_tokens=100, ignore_eos=True)))
        await until(lambda: _true(one.stats().running == 1))
        os.kill(one.pid, signal.SIGINT)
        os.kill(one.pid, signal.SIGTERM)
        assert len(tokens(await task)) == 100


SERVER = """
import asyncio, sys
from tests.engine.scripted import config
from tidemill.engine import client
from tidemill.engine.client import ProcessEngine
from tidemill.engine.crash_reports import CrashReports
async def main():
    one = ProcessEngine(config(sys.argv[1]), factory="tests.engine.scripted:make")
    await one.start()
    print(one.pid, flush=True)
    if len(sys.argv) > 2:
        from tests.engine.scripted import request
        async for _ in one.generate(request("a", 3)): pass
    await asyncio.sleep(3600)
asyncio.run(main())
"""


@pytest.mark.parametrize("state", ["idle", "hanging", "stopped"])
def test_the_engine_dies_with_its_server(state: str) -> None:
    arguments = ["hangs", "busy"] if state == "hanging" else ["hash"]
    with subprocess.Popen([sys.executable, "-c", SERVER, *arguments], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        pid = int(server.stdout.readline())
        child = psutil.Process(pid)
        time.sleep(0.2)
        if state == "stopped":
            child.suspend()
        server.kill()
        server.wait()
        gone, alive = psutil.wait_procs([child], timeout=5.0)
        assert (len(gone), len(alive)) == (1, 0)


def test_without_the_kernels_help_the_engine_still_notices_that_its_server_is_gone() -> None:
    """What systems without a parent-death signal have: the end of the socket, even while a step hangs."""
    code = SERVER.replace("tests.engine.scripted:make", "tests.engine.test_process:make_without_signal")
    with subprocess.Popen([sys.executable, "-c", code, "hangs", "busy"], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        child = psutil.Process(int(server.stdout.readline()))
        time.sleep(0.3)
        server.kill()
        server.wait()
        gone, _ = psutil.wait_procs([child], timeout=5.0)
        assert len(gone) == 1


def make_without_signal(settings):  # type: ignore[no-untyped-def]
    import ctypes

    from tests.engine.scripted import make

    ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)
    return make(settings)

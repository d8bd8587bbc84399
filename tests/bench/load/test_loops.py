"""Open and closed loops, sessions, and what the client says of itself, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tests.support.scripted_run import answers, asked, on_backend, on_server
from tests.support.virtual_time import LoopClock, run_virtual
from tidemill.bench.figures.latencies import samples
from tidemill.bench.figures.percentiles import nearest_rank
from tidemill.bench.load.lateness import ClientLimits, ClientLoad
from tidemill.bench.load.record import RequestRecord
from tidemill.bench.load.request import LoadRequest
from tidemill.bench.load.run import Load, Run, run_load
from tidemill.bench.load.target import Send
from tidemill.bench.load.watch import Watch
from tidemill.bench.scripted.script import Script, ScriptedAnswer, Step
from tidemill.core.errors import ConfigError

HALF_A_SECOND = answers(Step(after=0.5, tokens=1))


def e2e(run: Run) -> list[float]:
    return [value for record in run.records for value in samples(record, "e2e")]


def test_latency_counts_from_when_a_request_was_due() -> None:
    """Case 29: 10 requests/s for 2 s on 0.5 s of service. With one under way at a time each waits for all before it;
    from sending, every one of them would look like 0.5 s."""
    free, _ = on_server(HALF_A_SECOND, asked(20, every=0.1))
    assert e2e(free) == pytest.approx([0.5] * 20)
    assert free.valid

    capped, _ = on_server(HALF_A_SECOND, asked(20, every=0.1), max_under_way=1)
    ttft = [value for record in capped.records for value in samples(record, "ttft")]
    assert ttft == pytest.approx([0.5 + 0.4 * k for k in range(20)])
    assert e2e(capped) == pytest.approx([0.5 + 0.4 * k for k in range(20)])
    assert [late for record in capped.records for late in samples(record, "late")] == pytest.approx(
        [0.4 * k for k in range(20)]
    )
    assert not capped.valid
    assert capped.client.intended_rate == pytest.approx(10)
    assert capped.client.achieved_rate == pytest.approx(2)
    assert any("schedule was not kept" in complaint for complaint in capped.complaints)
    assert any("the client was late" in complaint for complaint in capped.complaints)


def test_one_stall_of_the_server_is_felt_by_all_who_come_meanwhile() -> None:
    """A server that does one thing at a time and stalls for 2 s once, at 10 requests/s: an open loop sees about 20
    slow answers, where a closed loop would see one."""

    async def go(load: Load) -> Run:
        return await run_load(load, OneByOne(stall=2.0, at=10), clock=LoopClock())

    run = run_virtual(go(Load(requests=asked(100, every=0.1))))
    assert sum(value > 0.2 for value in e2e(run)) == 20
    assert max(e2e(run)) == pytest.approx(2.0)
    assert nearest_rank(sorted(e2e(run)), 90) > 0.9
    closed = run_virtual(go(Load(requests=asked(100), concurrency=1)))
    assert sum(value > 0.2 for value in e2e(closed)) == 1


class OneByOne:
    """A server with one worker, 10 ms each, that stalls once."""

    def __init__(self, *, stall: float, at: int) -> None:
        self._lock, self._stall, self._at = asyncio.Lock(), stall, at

    name = "one by one"

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def prepare(self, request: LoadRequest) -> Send:
        async def send(watch: Watch) -> None:
            watch.sending()
            async with self._lock:
                await asyncio.sleep(self._stall if request.index == self._at else 0.01)
            watch.came(1)
            watch.end("ok")

        return send


def test_due_times_are_absolute_and_ties_go_together() -> None:
    due = [0.0, 0.0, 0.0, 0.25, 0.25, 3600.0]
    requests = [LoadRequest(index=i, prompt=r.prompt, max_tokens=4, due=due[i]) for i, r in enumerate(asked(6))]
    run, server = on_server(HALF_A_SECOND, requests, timeout=None)
    assert [record.sent for record in run.records] == pytest.approx(due, abs=1e-6)
    assert [seen.at - server.seen[0].at for seen in server.seen] == pytest.approx(due, abs=1e-6)


def test_making_a_request_ready_costs_the_next_one_nothing() -> None:
    """A prompt that takes 50 ms to make is made before its time; due times 100 ms apart are kept."""

    class SlowToPrepare(OneByOne):
        def prepare(self, request: LoadRequest) -> Send:
            asyncio.get_running_loop().virtual += 0.05  # type: ignore[attr-defined]
            return super().prepare(request)

    async def go() -> Run:
        return await run_load(Load(requests=asked(20, every=0.1)), SlowToPrepare(stall=0, at=-1), clock=LoopClock())

    run = run_virtual(go())
    assert [record.sent for record in run.records[1:]] == pytest.approx([0.1 * k for k in range(1, 20)], abs=1e-6)


def test_a_closed_loop_keeps_its_callers_busy() -> None:
    run, _ = on_server(HALF_A_SECOND, asked(10), concurrency=4)
    assert sorted(record.sent or 0 for record in run.records) == pytest.approx([0] * 4 + [0.5] * 4 + [1.0] * 2)
    assert e2e(run) == pytest.approx([0.5] * 10)
    assert (run.seconds, run.client.lateness) == (pytest.approx(1.5), [])


def test_a_closed_loop_begins_nothing_after_its_time() -> None:
    run, _ = on_server(HALF_A_SECOND, asked(100), concurrency=2, seconds=1.2)
    assert len(run.records) == 6
    assert run.seconds == pytest.approx(1.5)


@pytest.mark.parametrize("loop", [{}, {"concurrency": 2}])
def test_a_turn_comes_after_the_answer_before_it_and_the_thinking(loop: dict[str, int]) -> None:
    turns = [
        LoadRequest(
            index=i, prompt=asked()[0].prompt, max_tokens=4, session="s", turn=i, think=None if i == 0 else 2.0, due=0.0
        )
        for i in range(3)
    ]
    run, _ = on_server(HALF_A_SECOND, turns, **loop)
    assert [record.due for record in run.records] == pytest.approx([0.0, 2.5, 5.0])
    assert e2e(run) == pytest.approx([0.5] * 3)


def test_a_turn_without_thinking_comes_at_its_time_but_not_before_the_answer() -> None:
    due = [0.0, 0.1, 4.0]
    turns = [
        LoadRequest(index=i, prompt=asked()[0].prompt, max_tokens=4, session="s", turn=i, due=due[i]) for i in range(3)
    ]
    run, _ = on_server(HALF_A_SECOND, turns)
    assert [record.sent for record in run.records] == pytest.approx([0.0, 0.5, 4.0])


def test_turns_after_a_failed_one_are_failures_and_not_lost() -> None:
    script = Script(answers=(ScriptedAnswer(steps=(Step(tokens=1),)), ScriptedAnswer(status=429)))
    turns = [
        LoadRequest(index=i, prompt=asked()[0].prompt, max_tokens=4, session="s", turn=i, think=0.0) for i in range(4)
    ]
    run, server = on_server(script, turns)
    assert [record.outcome for record in run.records] == ["ok", "refused", "error", "error"]
    assert "turn 1 of its session failed" in str(run.records[3].error)
    assert len(server.seen) == 2


def test_a_run_that_is_cancelled_hangs_up_on_everything() -> None:
    async def go() -> Sequence[RequestRecord]:
        kept: list[RequestRecord] = []
        load = Load(requests=asked(5, every=0.1))
        task = asyncio.create_task(
            run_load(load, OneByOne(stall=100.0, at=0), clock=LoopClock(), on_record=kept.append)
        )
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return kept

    assert [record.outcome for record in run_virtual(go())] == ["disconnected"] * 5


def test_an_interrupted_run_gives_what_it_has_and_does_not_count() -> None:
    async def go() -> Run:
        load = Load(requests=asked(20, every=0.1))
        target = OneByOne(stall=0.0, at=0)
        running = asyncio.ensure_future(run_load(load, target, clock=LoopClock(), keep_interrupted=True))
        await asyncio.sleep(1.0)
        running.cancel()
        return await running

    run = run_virtual(go())
    ended = [record for record in run.records if record.outcome == "ok"]
    assert 8 <= len(ended) <= 10
    assert not run.valid
    assert run.complaints[0] == f"interrupted: {len(ended)} of 20 requests had ended"


def test_a_mistake_in_a_target_is_not_hidden() -> None:
    class Broken(OneByOne):
        def prepare(self, request: LoadRequest) -> Send:
            raise ConfigError(f"no such prompt: {request.index}")

    async def go() -> None:
        await run_load(Load(requests=asked()), Broken(stall=0, at=0), clock=LoopClock())

    with pytest.raises(ConfigError, match="no such prompt: 0"):
        run_virtual(go())


def test_warmup_is_sent_before_and_not_recorded() -> None:
    run, backend = on_backend(HALF_A_SECOND, asked(3, every=1.0), warmup=asked(2, max_tokens=5))
    assert [request.sampling.max_tokens for request in backend.requests] == [5, 5, 16, 16, 16]  # type: ignore[union-attr]
    assert len(run.records) == 3
    assert run.records[0].due == 0


def record(index: int, due: float, sent: float) -> RequestRecord:
    return RequestRecord(index=index, due=due, sent=sent, ended=sent)


def test_lateness_is_judged_by_its_99th_percentile() -> None:
    limits = ClientLimits(lateness_p99=0.010)
    kept = [record(i, i / 10, i / 10 + 0.001) for i in range(99)]
    one = ClientLoad.of([*kept, record(99, 9.9, 9.95)], open_loop=True, cpu_share=0.2)
    assert one.complaints(limits) == []
    two = ClientLoad.of([*kept, record(99, 9.9, 9.95), record(100, 10, 10.05)], open_loop=True, cpu_share=0.2)
    assert [line.split(":")[0] for line in two.complaints(limits)] == ["the client was late"]


def test_a_client_that_uses_its_whole_core_is_not_believed() -> None:
    load = ClientLoad.of([record(0, 0, 0)], open_loop=False, cpu_share=0.95)
    assert load.complaints(ClientLimits()) == ["the client was busy: 95% of its core (at most 90%)"]
    assert ClientLoad.of([record(0, 0, 0)], open_loop=False, cpu_share=0.85).complaints(ClientLimits()) == []


@pytest.mark.parametrize(
    "fields", [{"concurrency": 2, "max_under_way": 1}, {"max_under_way": 0}, {"timeout": 0.0}, {"seconds": -1.0}]
)
def test_loads_that_cannot_be(fields: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        Load(requests=[], **fields)  # type: ignore[arg-type]


def test_a_closed_loop_needs_a_caller() -> None:
    with pytest.raises(ConfigError, match="concurrency must be at least 1"):
        on_backend(HALF_A_SECOND, asked(), concurrency=0)

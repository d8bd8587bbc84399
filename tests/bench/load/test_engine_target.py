"""A TokenEngine under load, in virtual time: each delta says how many tokens it brought."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.support.scripted_engine import Fault, ScriptedEngine, Step
from tests.support.scripted_run import asked, ids
from tests.support.toy_text import ToyText, toy_info
from tests.support.virtual_time import LoopClock, run_virtual
from tidemill.bench.figures.latencies import samples
from tidemill.bench.load.engine_target import EngineTarget
from tidemill.bench.load.run import Load, Run, run_load
from tidemill.core.errors import ConfigError, Unavailable


def on_engine(
    steps: Sequence[Step | Fault | int], *, count: int = 1, max_requests: int = 1000, **fields: Any
) -> tuple[Run, ScriptedEngine]:
    requests = [replace(request, prompt=ids(8)) for request in asked(count, **fields)]

    async def go() -> tuple[Run, ScriptedEngine]:
        engine = ScriptedEngine(steps, info=toy_info(ToyText()), clock=LoopClock(), max_requests=max_requests)
        target = EngineTarget(engine=engine)
        await target.start()
        return await run_load(Load(requests=requests), target, clock=LoopClock()), engine

    return run_virtual(go())


def test_tokens_of_a_delta_come_together_and_are_counted() -> None:
    steps = [Step(tokens=(1,), delay=0.5), Step(tokens=(2, 3, 4), delay=0.3), Step(tokens=(5, 6, 7), delay=0.3)]
    run, engine = on_engine(steps, max_tokens=7, tenant="t", expected_tokens=5)
    (record,) = run.records
    assert [(item.at, item.tokens) for item in record.arrived] == [
        (pytest.approx(0.5), 1),
        (pytest.approx(0.8), 3),
        (pytest.approx(1.1), 3),
    ]
    assert (record.outcome, record.output_tokens, record.counted, record.finish_reason) == ("ok", 7, "each", "length")
    assert samples(record, "itl") == pytest.approx([0.1] * 6)
    (request,) = engine.requests
    assert (request.sampling.max_tokens, request.sampling.ignore_eos, request.tenant) == (7, True, "t")
    assert request.expected_tokens == 5
    assert list(request.prompt) == list(range(8))


def test_an_engine_that_cannot_go_on_is_an_error() -> None:
    run, _ = on_engine([Step(tokens=(1,), delay=0.5), Fault(error="out of blocks", delay=0.2)])
    assert (run.records[0].outcome, run.records[0].error, run.records[0].ended) == (
        "error",
        "out of blocks",
        pytest.approx(0.7),
    )


def test_a_full_queue_and_an_engine_that_died_refuse() -> None:
    run, _ = on_engine([Step(tokens=(1,), delay=0.5)], count=3, max_requests=2, max_tokens=1)
    assert [record.outcome for record in run.records] == ["ok", "ok", "refused"]
    run, _ = on_engine([Step(tokens=(1,), delay=0.5), Fault(raises=Unavailable("the engine is closed"))])
    assert (run.records[0].outcome, run.records[0].arrived_tokens) == ("refused", 1)


def test_hanging_up_aborts_the_request() -> None:
    run, engine = on_engine([Step(tokens=(1,), delay=0.1)], max_tokens=50, cancel_after=3)
    assert (run.records[0].outcome, run.records[0].arrived_tokens) == ("cancelled", 3)
    assert len(engine.aborted) == 1
    assert engine.open_streams == 0


def test_hanging_up_after_the_last_token_is_the_end() -> None:
    run, _ = on_engine([Step(tokens=(1,), delay=0.1)], max_tokens=3, cancel_after=3)
    assert run.records[0].outcome == "ok"


def test_an_engine_that_is_not_ready_is_not_measured() -> None:
    async def go() -> None:
        engine = ScriptedEngine([1], info=toy_info(ToyText()))
        engine.not_ready = "no step has ended for 40 s"
        await EngineTarget(engine=engine).start()

    with pytest.raises(Unavailable, match="no step has ended"):
        run_virtual(go())


def test_an_engine_takes_no_text() -> None:
    target = EngineTarget(engine=ScriptedEngine([1], info=toy_info(ToyText())))
    with pytest.raises(ConfigError, match="token ids"):
        target.prepare(asked()[0])

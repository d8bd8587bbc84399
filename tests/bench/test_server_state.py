"""What servers say about themselves, read during a run."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.virtual_time import LoopClock, run_virtual
from tidemill.bench.server_state import ServerState, StateWatch, parse_metrics

VLLM = """# HELP vllm:num_requests_running Number
vllm:num_requests_running{engine="0",model_name="a b"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="}"} 7.0 1700000000
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("tidemill_engine_running 4\ntidemill_engine_waiting 1\n", (4.0, 1.0)),
        (VLLM, (5.0, 7.0)),
        ("llamacpp:requests_processing 2\nllamacpp:requests_deferred 9\n", (2.0, 9.0)),
        ("tidemill_engine_running 4", (4.0, 0.0)),
        ("# tidemill_engine_running 4\nother 1\ntidemill_engine_waiting 3\nbroken\nx{ y\n", None),
        ("", None),
    ],
)
def test_metrics(text: str, found: tuple[float, float] | None) -> None:
    assert parse_metrics(text) == found


class Sender:
    """The part of a sender that is used."""

    def now(self) -> float:
        return LoopClock().now()


def test_a_server_is_looked_at_every_second_until_the_run_is_over() -> None:
    async def go() -> list[ServerState]:
        async def look() -> tuple[float, float]:
            await asyncio.sleep(0.25)
            return LoopClock().now(), 1.0

        watch = StateWatch(look)
        watch.on_start(Sender())  # type: ignore[arg-type]
        await asyncio.sleep(3)
        await watch.stop()
        await asyncio.sleep(10)
        return watch.states

    states = run_virtual(go())
    assert [state.at for state in states] == [0.25, 1.5, 2.75]
    assert states[1] == ServerState(at=1.5, running=1.5, waiting=1.0)


def test_a_server_that_does_not_tell_is_asked_once() -> None:
    asked = []

    async def go() -> None:
        async def look() -> None:
            asked.append(LoopClock().now())

        watch = StateWatch(look)
        watch.on_start(Sender())  # type: ignore[arg-type]
        await asyncio.sleep(5)
        await watch.stop()
        assert watch.states == []

    run_virtual(go())
    assert asked == [0.0]

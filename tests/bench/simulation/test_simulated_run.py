"""The simulated engine: exact times on a step that takes what it is told, and the same steps as the real loop."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.scripted import HashExecutor, make_loop
from tidemill.bench.load.record import RequestRecord
from tidemill.bench.load.request import LoadRequest, Prompt
from tidemill.bench.load.run import Run
from tidemill.bench.simulation.simulated_run import simulate
from tidemill.core.config import SchedulerConfig
from tidemill.core.sampling import SamplingOptions
from tidemill.core.step import StepPlan
from tidemill.core.tokens import TokenRequest
from tidemill.scheduling.kv.space import KvGroupSpace, KvSpace


def asked(index: int, prompt: int | Sequence[int], tokens: int, due: float = 0.0, **more: object) -> LoadRequest:
    ids = [(7 * index + 3 * i) % 900 for i in range(prompt)] if isinstance(prompt, int) else prompt
    made = Prompt(ids=array("i", ids), tokens=len(ids))
    return LoadRequest(index=index, prompt=made, max_tokens=tokens, due=due, **more)  # type: ignore[arg-type]


def run(*requests: LoadRequest, answers: dict[int, int] | None = None, blocks: int = 100, **config: object) -> Run:
    """Steps that take a second, and a hundredth of one for each token."""
    return simulate(
        requests,
        answers,
        config=SchedulerConfig(**config),  # type: ignore[arg-type]
        space=KvSpace([KvGroupSpace(num_blocks=blocks, block_size=16)]),
        step_seconds=lambda rows: 1.0 + 0.01 * sum(tokens for _, tokens, _ in rows),
    )


def times(record: RequestRecord) -> list[float]:
    return [round(item.at, 6) for item in record.arrived]


def test_each_token_comes_when_its_step_has_ended() -> None:
    (record,) = run(asked(0, 20, 3, due=5.0)).records
    assert times(record) == [6.2, 7.21, 8.22]
    assert (record.due, record.sent, record.ended) == (5.0, 5.0, pytest.approx(8.22))
    assert (record.outcome, record.output_tokens, record.finish_reason) == ("ok", 3, "length")


def test_a_request_that_comes_while_a_step_runs_waits_for_its_end() -> None:
    first, second = run(asked(0, 20, 3), asked(1, 10, 1, due=0.5)).records
    assert times(first) == [1.2, 2.31, 3.32]
    assert times(second) == [2.31]
    assert second.sent == pytest.approx(1.2)
    assert second.due == 0.5


def test_an_answer_that_ends_by_itself_ends_before_what_it_asked_for() -> None:
    (record,) = run(asked(0, 20, 50), answers={0: 2}).records
    assert (record.output_tokens, record.asked_tokens) == (2, 50)


def test_a_length_that_is_said_counts_for_the_order_and_not_for_the_answer() -> None:
    requests = [asked(0, 20, 50), asked(1, 20, 50, expected_tokens=40), asked(2, 20, 50, expected_tokens=5)]
    done = run(*requests, answers=dict.fromkeys(range(3), 2), order="srf", max_running=1)
    assert [record.index for record in sorted(done.records, key=lambda one: one.ended or 0.0)] == [2, 1, 0]
    assert [record.output_tokens for record in done.records] == [2, 2, 2]


def test_padding_takes_its_time() -> None:
    requests = [asked(0, 30, 1), asked(1, 10, 2)]
    static = run(*requests, policy="static")
    compacted = run(*requests, policy="static-compacted")
    assert times(compacted.records[1]) == [1.4, 2.41]
    assert times(static.records[1]) == [1.6, 2.62]  # 20 tokens of padding, and a row that has ended


def test_a_batch_that_waits_to_become_full_lets_time_pass() -> None:
    requests = [asked(0, 10, 1), asked(1, 10, 1, due=3.0), asked(2, 10, 1, due=40.0)]
    records = run(*requests, policy="dynamic", batch_size=2, batch_wait=10.0).records
    assert [times(one) for one in records] == [[4.2], [4.2], [51.1]]


def test_a_later_turn_comes_when_its_user_has_read_the_answer() -> None:
    turns = [
        asked(0, 10, 2, session="s"),
        asked(1, 10, 1, due=1.0, session="s", turn=1, think=2.0),
        asked(2, 10, 1, due=50.0, session="s", turn=2),
    ]
    first, second, third = run(*turns, prefix_cache="off").records
    assert first.ended == pytest.approx(2.11)
    assert second.due == pytest.approx(4.11)
    assert third.due == 50.0


def test_prompts_that_begin_alike_are_computed_once() -> None:
    shared = list(range(100, 164))
    records = run(asked(0, [*shared, 1], 1), asked(1, [*shared, 2], 1, due=9.0)).records
    assert [one.cached_tokens for one in records] == [0, 64]
    assert times(records[1]) == [10.01]


def test_what_never_fits_or_finds_the_queue_full_is_refused_and_the_rest_goes_on() -> None:
    records = run(asked(0, 100, 1000), asked(1, 10, 1), blocks=10).records
    assert [one.outcome for one in records] == ["refused", "ok"]
    records = run(*(asked(i, 10, 1) for i in range(4)), max_waiting=2).records
    assert [one.outcome for one in records] == ["ok", "ok", "refused", "refused"]


def test_nothing_is_a_run_too() -> None:
    done = run()
    assert (list(done.records), done.seconds) == ([], 0.0)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    policy=st.sampled_from(["continuous", "static", "static-compacted", "dynamic"]),
    blocks=st.integers(8, 40),
    prefix_cache=st.sampled_from(["on", "off"]),
)
def test_its_steps_are_those_of_the_real_loop(seed: int, policy: str, blocks: int, prefix_cache: str) -> None:
    """All at once, so that both see the same requests at each step; answers end where they asked to."""
    draw = random.Random(seed)
    common = [1 + 5 * i for i in range(50)]
    prompts = [[*common[: draw.randint(0, 50)], *range(200 + i, 200 + i + draw.randint(1, 20))] for i in range(8)]
    requests = [asked(i, prompt, draw.randint(1, 30)) for i, prompt in enumerate(prompts)]
    config = {"policy": policy, "max_step_tokens": 32, "batch_size": 3, "batch_wait": 0.0, "prefix_cache": prefix_cache}
    simulated: list[list[tuple[int, int, int]]] = []

    def noted(rows: Iterable[tuple[int, int, int]]) -> float:
        simulated.append(list(rows))
        return 1.0

    simulate(
        requests,
        None,
        config=SchedulerConfig(**config),  # type: ignore[arg-type]
        space=KvSpace([KvGroupSpace(num_blocks=blocks, block_size=16)]),
        step_seconds=noted,
    )
    real: list[list[tuple[int, int, int]]] = []

    def watch(plan: StepPlan) -> None:
        real.append([(row.start, len(row.tokens), row.num_outputs) for row in plan.rows])

    loop = make_loop(executor=HashExecutor(watch), num_blocks=blocks, end_token_ids=(), **config)  # type: ignore[arg-type]
    for one in requests:
        assert one.prompt.ids is not None
        sampling = SamplingOptions(temperature=0.0, max_tokens=one.max_tokens)
        loop.add(TokenRequest(request_id=str(one.index), prompt=one.prompt.ids.tolist(), sampling=sampling))
    while loop.has_work:
        loop.step()
    assert simulated == real

"""The engine loop against an executor in which any lost, doubled or misplaced token changes everything."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.engine.scripted import HashExecutor, make_loop, request, run, tokens
from tidemill.core.clock import ManualClock
from tidemill.core.errors import ContextLengthExceeded, InvalidRequest, Overloaded
from tidemill.core.metrics import STEP_BUCKETS
from tidemill.core.step import NO_SEQUENCE, PlanRow, RowOutputs, StepPlan
from tidemill.core.tokens import FinishReason, TokenDelta, TokenRequest

REQUESTS = [
    request("greedy", 30, max_tokens=60, temperature=0.0),
    request("seeded", 45, max_tokens=60, seed=7),
    request("penalised", 17, max_tokens=60, repetition_penalty=1.3, frequency_penalty=0.5, logprobs=2),
    request("choices", 33, max_tokens=40, n=3, seed=-1),
    request("short", 1, max_tokens=5),
    request("long", 200, max_tokens=30, presence_penalty=1.0),
]


def _alone(one: TokenRequest) -> dict[int, list[int]]:
    answers = run(make_loop(), one)
    return {choice: tokens(deltas) for (_, choice), deltas in answers.items()}


ALONE = {one.request_id: _alone(one) for one in REQUESTS}


def _assert_as_alone(answers: dict[tuple[str, int], list[TokenDelta]]) -> None:
    got: dict[str, dict[int, list[int]]] = {}
    for (name, choice), deltas in answers.items():
        got.setdefault(name, {})[choice] = tokens(deltas)
    assert got == ALONE


@pytest.mark.parametrize("budget", [1, 7, 16, 64, 512])
def test_each_answer_among_others_is_the_one_alone_in_chunks_of_any_size(budget: int) -> None:
    _assert_as_alone(run(make_loop(max_step_tokens=budget), *REQUESTS))


@pytest.mark.parametrize(
    "settings",
    [
        {"policy": "static"},
        {"policy": "static", "max_step_tokens": 20, "max_running": 3},
        {"policy": "static", "groups": 2, "batch_size": 5, "num_blocks": 40},
        {"policy": "static-compacted", "max_step_tokens": 20, "max_running": 3},
        {"policy": "dynamic", "batch_size": 2, "batch_wait": 0.01},
        {"kv_reservation": "contiguous"},
        {"chunked_prefill": False, "max_step_tokens": 16},
        {"max_running": 2},
        {"block_size": 32},
        {"groups": 2},
        {"order": "srf", "max_running": 2, "max_step_tokens": 20},
        {"order": "fair,prefix", "max_running": 2},
        {"order": "priority,deadline", "num_blocks": 15, "victim": "least-work"},
        {"preempted_blocks": "drop", "num_blocks": 15},
        {"itl_target": 1e-9},
    ],
    ids=str,
)
def test_no_setting_of_the_scheduler_changes_an_answer(settings: dict[str, object]) -> None:
    _assert_as_alone(run(make_loop(**settings), *REQUESTS))  # type: ignore[arg-type]


@pytest.mark.parametrize("budget", [16, 512])
def test_preempted_several_times_the_answers_are_the_same(budget: int) -> None:
    loop = make_loop(num_blocks=15, max_step_tokens=budget)
    _assert_as_alone(run(loop, *REQUESTS))
    assert loop.stats().preemptions_total >= 2


@pytest.mark.parametrize(("prefix_cache", "again"), [("off", 176), ("on", 176 - 112)])
def test_a_pool_for_one_and_a_half_requests_preempts_the_later_one(prefix_cache: str, again: int) -> None:
    """Two prompts of 30 tokens, 200 output tokens each (229 in the KV: 15 blocks), 22 blocks in all."""
    options = {"max_tokens": 200, "seed": 7, "repetition_penalty": 1.3, "ignore_eos": True}
    pair = [request("a", 30, **options), request("b", 30, **options)]
    large = run(make_loop(num_blocks=64), *pair)
    loop = make_loop(num_blocks=22, prefix_cache=prefix_cache)
    small = run(loop, *pair)
    assert {key: tokens(deltas) for key, deltas in small.items()} == {key: tokens(d) for key, d in large.items()}
    assert [len(tokens(deltas)) for deltas in small.values()] == [200, 200]
    assert loop.stats().preemptions_total == 1
    # b had 22 - 11 blocks when a asked for its 12th: 176 tokens of it were computed and are computed again, but for
    # those that are still there when a has ended: 11 blocks, less the 4 that a took since.
    assert loop.stats().prompt_tokens_total == 30 + 30 + again


def test_a_request_that_is_preempted_twice_comes_back_twice_the_same() -> None:
    four = [request(name, 4, max_tokens=60 + 30 * k, ignore_eos=True, seed=k) for k, name in enumerate("abcd")]
    large = run(make_loop(), *four)
    executor = HashExecutor()
    small = run(make_loop(executor=executor, num_blocks=12, prefix_cache="off"), *four)
    assert {key: tokens(deltas) for key, deltas in small.items()} == {key: tokens(d) for key, d in large.items()}
    starts = Counter(row.sequence for plan in executor.plans for row in plan.rows if row.start == 0)
    assert starts == {0: 1, 1: 1, 2: 1, 3: 3}


@pytest.mark.parametrize("preempted_blocks", ["keep", "drop"])
def test_who_loses_its_place_to_better_priorities_comes_back_the_same(preempted_blocks: str) -> None:
    """Twice at different points: no token is lost, doubled or sent again, and draws and penalties go on."""
    low = replace(request("low", 30, max_tokens=60, seed=7, repetition_penalty=1.3, ignore_eos=True), priority=5)
    alone = run(make_loop(), low)["low", 0]
    loop = make_loop(order="priority", max_running=1, preempted_blocks=preempted_blocks)
    loop.add(low)
    said = []
    for number in range(200):
        if number in (5, 24, 25):
            loop.add(request(f"high {number}", 20, max_tokens=3, ignore_eos=True))
        said += [delta for delta in loop.step() if delta.request_id == "low"]
    assert tokens(said) == tokens(alone)
    assert [delta.num_output_tokens for delta in said] == list(range(1, 61))
    assert loop.stats().places_taken_total == 2
    loop.check_idle()


def test_an_end_token_ends_and_is_counted_but_not_shown() -> None:
    free = run(make_loop(end_token_ids=()), request("a", 30, max_tokens=50))["a", 0]
    fifth = tokens(free)[4]
    assert fifth not in tokens(free)[:4]
    stopped = run(make_loop(end_token_ids=(1, fifth)), request("a", 30, max_tokens=50))["a", 0]
    assert tokens(stopped) == tokens(free)[:4]
    last = stopped[-1]
    assert (last.tokens, last.finish_reason, last.stop_token, last.num_output_tokens) == (
        (), FinishReason.STOP, fifth, 5,
    )  # fmt: skip
    by_user = run(make_loop(end_token_ids=()), request("a", 30, max_tokens=50, stop_token_ids=(fifth,)))["a", 0]
    assert tokens(by_user) == tokens(free)[:4]
    assert by_user[-1].stop_token == fifth


def test_whichever_end_token_comes_first_ends() -> None:
    free = tokens(run(make_loop(end_token_ids=()), request("a", 30, max_tokens=50))["a", 0])
    ends = (free[9], free[4], free[7])
    assert not {*ends} & {*free[:4]}
    for by_model, by_user in ((ends, ()), (ends[:1], ends[1:]), ((), ends)):
        asked = request("a", 30, max_tokens=50, stop_token_ids=by_user)
        answer = run(make_loop(end_token_ids=by_model), asked)["a", 0]
        assert tokens(answer) == free[:4]
        assert (answer[-1].finish_reason, answer[-1].stop_token) == (FinishReason.STOP, free[4])


def test_ignore_eos_disables_the_models_end_tokens_and_not_the_users() -> None:
    free = tokens(run(make_loop(end_token_ids=()), request("a", 30, max_tokens=50))["a", 0])
    loop = make_loop(end_token_ids=(free[4],))
    through = run(loop, request("a", 30, max_tokens=50, ignore_eos=True, stop_token_ids=(free[9],)))["a", 0]
    assert tokens(through) == free[:9]
    assert through[-1].stop_token == free[9]


def test_max_tokens_ends_with_length_on_the_delta_of_the_last_token() -> None:
    answer = run(make_loop(), request("a", 5, max_tokens=3))["a", 0]
    assert [delta.finish_reason for delta in answer] == [None, None, FinishReason.LENGTH]
    assert [len(delta.tokens) for delta in answer] == [1, 1, 1]
    assert [delta.num_output_tokens for delta in answer] == [1, 2, 3]


def test_logprobs_go_with_their_tokens_and_not_with_the_end_token() -> None:
    free = run(make_loop(end_token_ids=()), request("a", 30, max_tokens=4, logprobs=0))["a", 0]
    loop = make_loop(end_token_ids=(tokens(free)[3],))
    answer = run(loop, request("a", 30, max_tokens=50, logprobs=0))["a", 0]
    logprobs = [one for delta in answer for one in delta.logprobs or ()]
    assert [one.token for one in logprobs] == tokens(answer) == tokens(free)[:3]
    assert answer[-1].logprobs == ()


def test_the_penalties_of_a_row_count_prompt_and_output() -> None:
    executor = HashExecutor()
    loop = make_loop(executor=executor)
    answer = run(loop, request("a", [5, 9, 5], max_tokens=3, presence_penalty=1.0), request("b", 3, max_tokens=3))
    first, second, third = (plan.rows[0].options.penalties for plan in executor.plans)  # type: ignore[union-attr]
    drawn = tokens(answer["a", 0])
    assert (first.ids, first.output_counts) == ((5, 9), (0, 0))  # type: ignore[union-attr]
    assert dict(zip(second.ids, second.output_counts, strict=True)) == {5: 0, 9: 0, drawn[0]: 1}  # type: ignore[union-attr]
    assert list(third.ids) == sorted({5, 9, *drawn[:2]})  # type: ignore[union-attr]
    assert all(plan.rows[1].options.penalties is None for plan in executor.plans)  # type: ignore[union-attr]


def test_a_seed_is_drawn_once_per_request_and_shared_by_its_choices() -> None:
    executor = HashExecutor()
    seeds = iter([11, 12])
    loop = make_loop(executor=executor, seeds=lambda: next(seeds))
    run(loop, request("a", 3, max_tokens=2, n=2), request("b", 3, max_tokens=2, seed=-3), request("c", 3, max_tokens=2))
    keys = [(row.options.seed, row.options.choice) for row in executor.plans[0].rows if row.options]
    assert keys == [(11, 0), (11, 1), (2**64 - 3, 0), (12, 0)]


def test_without_max_tokens_the_answer_fills_the_room() -> None:
    by_model = run(make_loop(max_model_len=100), request("a", 30, ignore_eos=True))["a", 0]
    assert (len(tokens(by_model)), by_model[-1].finish_reason) == (70, FinishReason.LENGTH)
    # 8 blocks of 16 hold 128 tokens; the 99th output token is drawn from the 128th and never computed.
    by_pool = run(make_loop(num_blocks=8), request("a", 30, ignore_eos=True))["a", 0]
    assert (len(tokens(by_pool)), by_pool[-1].finish_reason) == (99, FinishReason.LENGTH)


def test_what_can_never_fit_the_pool_is_refused_at_once_and_the_next_one_served() -> None:
    loop = make_loop(num_blocks=8, max_model_len=4096)
    with pytest.raises(ContextLengthExceeded, match="KV pool capacity is 128 tokens"):
        loop.add(request("big", 129))
    with pytest.raises(ContextLengthExceeded, match=r"KV pool capacity is 128 .* 100 tokens .* 200 output"):
        loop.add(request("growing", 100, max_tokens=200))
    answer = run(loop, request("small", 10, max_tokens=4))["small", 0]
    assert len(tokens(answer)) == 4


def test_a_sequence_that_fills_the_whole_pool_ends_with_length_and_the_next_one_is_served() -> None:
    """As if more had been promised than there is: 2 blocks hold 32 tokens, the 33rd is drawn and never computed."""
    loop = make_loop(num_blocks=2, kv_capacity_tokens=1000)
    answers = run(loop, request("a", 30, max_tokens=50, ignore_eos=True), request("b", 4, max_tokens=3))
    assert [len(delta.tokens) for delta in answers["a", 0]] == [1, 1, 1, 0]
    assert answers["a", 0][-1].finish_reason is FinishReason.LENGTH
    assert answers["a", 0][-1].num_output_tokens == 3
    assert len(tokens(answers["b", 0])) == 3


def test_an_id_in_use_is_refused_and_free_again_after_an_abort() -> None:
    loop = make_loop()
    loop.add(request("a", 3))
    with pytest.raises(InvalidRequest, match="request id a is in use"):
        loop.add(request("a", 3))
    loop.abort("a")
    loop.check_idle()
    assert len(tokens(run(loop, request("a", 3, max_tokens=2))["a", 0])) == 2


@pytest.mark.parametrize(
    ("prompt", "message"), [([], "empty"), ([1000], "1000"), ([3, -1], "position 1"), ([1.0], "1.0")]
)
def test_prompts_that_are_none_are_refused(prompt: Sequence[int], message: str) -> None:
    loop = make_loop()
    with pytest.raises(InvalidRequest, match=message):
        loop.add(request("a", prompt))
    loop.check_idle()


def test_ten_thousand_requests_into_a_queue_of_100() -> None:
    loop = make_loop(max_waiting=100, max_running=8)
    refused = 0
    for number in range(10_000):
        try:
            loop.add(request(f"r{number}", 4, max_tokens=2))
        except Overloaded:
            refused += 1
    assert refused == 9_900
    answers = run(loop)
    assert sorted(name for name, _ in answers) == sorted(f"r{number}" for number in range(100))


def test_more_choices_than_the_queue_can_ever_hold_are_the_callers_mistake() -> None:
    with pytest.raises(InvalidRequest, match="n is 5"):
        make_loop(max_waiting=4).add(request("a", 3, n=5))


def test_abort_while_waiting_reading_generating_and_in_flight() -> None:
    executor = HashExecutor()
    loop = make_loop(executor=executor, max_running=3, max_step_tokens=16)
    for name in ("generating", "reading", "in flight", "waiting"):
        loop.add(request(name, 40, max_tokens=50, ignore_eos=True))
    for _ in range(4):
        loop.step()
    assert (loop.stats().running, loop.stats().waiting) == (2, 2)
    executor.hook = lambda plan: loop.abort("in flight") if plan.num_tokens > 1 else None
    loop.abort("waiting")
    loop.abort("generating")
    assert loop.stats().waiting == 1
    loop.abort("reading")
    assert loop.stats().kv_blocks_held == 0
    assert loop.step() == []
    assert not loop.has_work
    loop.check_idle()
    assert loop.stats().requests_finished == {"abort": 4}


def test_aborting_one_choice_leaves_the_others() -> None:
    loop = make_loop()
    loop.add(request("a", 10, max_tokens=20, n=3, seed=5, ignore_eos=True))
    loop.step()
    loop.abort("a", 1)
    loop.abort("a", 1)
    loop.abort("nobody")
    answers = run(loop)
    assert sorted(answers) == [("a", 0), ("a", 2)]
    assert [len(tokens(deltas)) for deltas in answers.values()] == [19, 19]


class _Oracle:
    """Proposes what the answer will be, wrong from the given number of tokens on."""

    def __init__(self, answer: list[int], prompt: int, right: int) -> None:
        self._answer = answer
        self._prompt = prompt
        self._right = right

    def propose(self, so_far: Sequence[int], limit: int) -> Sequence[int]:
        at = len(so_far) - self._prompt
        guess = self._answer[at : at + limit]
        return [token if j < self._right else (token + 1) % 1000 for j, token in enumerate(guess)]


@pytest.mark.parametrize(("right", "steps"), [(0, 41), (1, 21), (2, 15), (4, 9)])
def test_proposals_change_the_number_of_steps_and_nothing_else(right: int, steps: int) -> None:
    """41 tokens: the first comes with the prompt, then each step keeps the right ones of 4 proposals and one more."""
    one = request("a", 20, max_tokens=41, seed=3, ignore_eos=True, logprobs=0)
    plain = run(make_loop(), one)["a", 0]
    loop = make_loop(proposer=_Oracle(tokens(plain), 20, right), max_proposed=4)
    answer = run(loop, one)["a", 0]
    assert tokens(answer) == tokens(plain)
    assert [x for d in answer for x in d.logprobs or ()] == [x for d in plain for x in d.logprobs or ()]
    assert len(answer) == steps
    assert loop.stats().generation_tokens_total == 41


def test_blocks_taken_for_wrong_proposals_come_back_in_the_same_step() -> None:
    one = request("a", 14, max_tokens=30, ignore_eos=True)
    plain = tokens(run(make_loop(), one)["a", 0])
    loop = make_loop(proposer=_Oracle(plain, 14, 0), max_proposed=6)
    loop.add(one)
    loop.step()
    # 15 tokens known, 14 computed; the step computes 7 more (positions 14 .. 20: two blocks) and keeps one.
    loop.step()
    assert loop.stats().kv_blocks_held == 1


def test_proposals_under_preemption_and_end_tokens_keep_the_answer() -> None:
    pair = [request("a", 30, max_tokens=100, seed=1), request("b", 30, max_tokens=100, seed=2)]
    free = run(make_loop(end_token_ids=()), *pair)
    end = tokens(free["a", 0])[57]
    plain = run(make_loop(end_token_ids=(end,)), *pair)
    answers = {(key, len(deltas[-1].tokens)): tokens(deltas) for key, deltas in plain.items()}

    class Both:
        def propose(self, so_far: Sequence[int], limit: int) -> Sequence[int]:
            known = "a" if list(so_far[:30]) == list(pair[0].prompt) else "b"
            return _Oracle(tokens(free[known, 0]), 30, 3).propose(so_far, limit)

    loop = make_loop(num_blocks=10, end_token_ids=(end,), proposer=Both(), max_proposed=5)
    got = run(loop, *pair)
    assert {key: tokens(deltas) for key, deltas in got.items()} == {key: text for (key, _), text in answers.items()}
    assert got["a", 0][-1].stop_token == end
    assert loop.stats().preemptions_total > 0


def test_a_failed_step_ends_those_in_it_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    executor = HashExecutor()
    loop = make_loop(executor=executor, max_running=1)
    loop.add(request("in it", 10, max_tokens=5))
    loop.add(request("behind", 10, max_tokens=5, ignore_eos=True))
    loop.step()

    def explode(_: StepPlan) -> None:
        executor.hook = lambda _: None
        raise ValueError("a cosmic ray")

    executor.hook = explode
    with caplog.at_level(logging.ERROR):
        (failed,) = loop.step()
    assert (failed.request_id, failed.finish_reason) == ("in it", FinishReason.ERROR)
    assert failed.error == "the step failed: ValueError: a cosmic ray"
    assert "a cosmic ray" in caplog.text
    assert len(tokens(run(loop)["behind", 0])) == 5


def test_an_executor_that_keeps_failing_ends_the_loop() -> None:
    def explode(_: StepPlan) -> None:
        raise OSError("broken for good")

    loop = make_loop(executor=HashExecutor(explode), max_running=1)
    for name in "abcd":
        loop.add(request(name, 3))
    assert [loop.step()[0].finish_reason, loop.step()[0].finish_reason] == [FinishReason.ERROR] * 2
    with pytest.raises(OSError, match="broken for good"):
        loop.step()


def test_a_result_of_the_wrong_shape_is_a_failed_step() -> None:
    class Silent(HashExecutor):
        def _row(self, row: PlanRow) -> RowOutputs:  # noqa: ARG002
            return RowOutputs()

    loop = make_loop(executor=Silent())
    loop.add(request("a", 3))
    (delta,) = loop.step()
    assert delta.error is not None
    assert "gave [0] outputs per row where [1] were asked for" in delta.error


def test_padded_rows_are_in_the_plan_and_what_they_give_is_dropped() -> None:
    executor = HashExecutor()
    loop = make_loop(executor=executor, policy="static", end_token_ids=())
    answers = run(loop, request("short", 5, max_tokens=2), request("long", 12, max_tokens=4))
    sizes = [[(len(row.tokens), row.num_outputs) for row in plan.rows] for plan in executor.plans]
    assert sizes == [[(5, 1), (12, 1), (7, 0)], [(1, 1), (1, 1)], [(1, 1), (1, 1)], [(1, 1), (1, 1)]]
    assert [row.sequence for row in executor.plans[0].rows] == [0, 1, NO_SEQUENCE]
    assert [len(tokens(deltas)) for deltas in answers.values()] == [2, 4]
    stats = loop.stats()
    assert (stats.padding_tokens_total, stats.generation_tokens_total, stats.prompt_tokens_total) == (7 + 2, 6, 17)


def test_a_padded_row_that_fails_ends_nobody() -> None:
    def explode(plan: StepPlan) -> None:
        if any(row.sequence == NO_SEQUENCE for row in plan.rows):
            raise ValueError("a cosmic ray")

    loop = make_loop(executor=HashExecutor(explode), policy="static")
    _assert_as_alone(run(loop, *REQUESTS))


def test_a_batch_that_waits_to_become_full_takes_no_step_and_says_how_long() -> None:
    loop = make_loop(policy="dynamic", batch_size=2, batch_wait=60.0)
    loop.add(request("a", 5, max_tokens=3))
    assert loop.step() == []
    assert 50.0 < loop.idle_seconds <= 60.0
    assert loop.stats().steps == 0
    loop.add(request("b", 5, max_tokens=3))
    assert loop.idle_seconds == 0.0
    assert {delta.request_id for delta in loop.step()} == {"a", "b"}


def test_stats_of_a_short_story() -> None:
    clock = ManualClock()
    executor = HashExecutor(lambda _: clock.advance(0.5))
    loop = make_loop(executor=executor, clock=clock, max_step_tokens=32, num_blocks=10)
    loop.add(request("a", 40, max_tokens=3, ignore_eos=True))
    loop.add(request("b", 8, max_tokens=1, ignore_eos=True))
    loop.step()
    stats = loop.stats()
    assert (stats.steps, stats.running, stats.waiting) == (1, 1, 1)
    assert (stats.kv_blocks_total, stats.kv_blocks_held, stats.kv_blocks_free, stats.kv_block_size) == (10, 2, 8, 16)
    assert (stats.prompt_tokens_total, stats.generation_tokens_total, stats.step_tokens) == (32, 0, 32)
    assert (stats.step_seconds, stats.executor_seconds, stats.last_progress) == (0.5, 0.001, 0.5)
    assert stats.step_seconds_total == 0.5
    assert dict(zip((*STEP_BUCKETS, "longer"), stats.steps_by_seconds, strict=True))[0.6] == 1
    assert sum(stats.steps_by_seconds) == 1
    loop.step()
    stats = loop.stats()
    assert (stats.prompt_tokens_total, stats.generation_tokens_total, stats.step_tokens) == (48, 2, 16)
    assert stats.requests_finished == {"length": 1}
    run(loop)
    stats = loop.stats()
    assert (stats.steps, stats.prompt_tokens_total, stats.generation_tokens_total) == (4, 48, 4)
    assert (stats.kv_blocks_free, stats.kv_blocks_cached) == (6, 4)
    assert stats.requests_finished == {"length": 2}


@pytest.mark.parametrize("guilty", [{0}, {3}, {7}, {1, 2}, {0, 4, 6}])
def test_only_the_rows_at_fault_fail_and_all_others_get_what_they_would_have_got(
    guilty: set[int], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL")
    asked = [request(f"r{k}", 20 + k, max_tokens=15, ignore_eos=True, n=1 + k % 2) for k in range(8)]
    expected = run(make_loop(), *asked)
    firsts = {asked[k].prompt[0] for k in guilty}

    def explode(plan: StepPlan) -> None:
        if any(row.start == 0 and row.tokens[0] in firsts for row in plan.rows):
            raise ValueError("a prompt that no step survives")

    answers = run(make_loop(executor=HashExecutor(explode)), *asked)
    for (name, choice), deltas in answers.items():
        if int(name[1:]) in guilty:
            assert [delta.finish_reason for delta in deltas] == [FinishReason.ERROR]
            assert deltas[0].error == "the step failed: ValueError: a prompt that no step survives"
        else:
            assert deltas == expected[name, choice]
    assert answers.keys() == expected.keys()


def test_a_failure_that_does_not_come_again_costs_nobody_anything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")
    asked = [request(f"r{k}", 20 + k, max_tokens=15) for k in range(8)]
    steps: list[int] = []

    def explode(plan: StepPlan) -> None:
        steps.append(plan.step)
        if steps.count(plan.step) == 1 and plan.step % 3 == 1 and len(plan.rows) > 1:
            raise ValueError("once")

    assert run(make_loop(executor=HashExecutor(explode)), *asked) == run(make_loop(), *asked)
    assert len(steps) > len(set(steps))


def test_the_first_delta_says_when_the_first_step_began_and_a_preemption_does_not_change_it() -> None:
    clock = ManualClock()
    executor = HashExecutor(lambda _: clock.advance(1.0))
    loop = make_loop(num_blocks=6, executor=executor, clock=clock, max_running=2, max_step_tokens=32)
    clock.advance(5.0)
    for name in ("a", "b", "c"):
        loop.add(request(name, 30, max_tokens=40, ignore_eos=True))
    found: dict[str, list[float | None]] = {}
    while loop.has_work:
        for delta in loop.step():
            found.setdefault(delta.request_id, []).append(delta.began)
    assert loop.stats().preemptions_total > 0
    assert [began[0] for began in found.values()][:2] == [5.0, 5.0], "a part of b was in a's step"
    assert all(began[0] is not None for began in found.values())
    assert all(later is None for began in found.values() for later in began[1:])

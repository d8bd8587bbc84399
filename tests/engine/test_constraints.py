"""What a request forbids is not drawn, whatever the step; what leaves nothing ends the choice with its reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.engine.scripted import VOCAB, make_loop, request, run
from tidemill.core.grammar import Grammar
from tidemill.core.mask import allows, mask_bytes
from tidemill.core.reasoning import ReasoningBudget
from tidemill.core.sampling import SamplingOptions
from tidemill.core.tokens import FinishReason, TokenDelta
from tidemill.engine.constraints import BannedSequences, LeastLength, ReasoningLimit, constraints_of, mask_after
from tidemill.engine.sequences import NOTHING_ALLOWED


def allowed(mask: bytes | None, vocab: int = 40) -> set[int]:
    return {token for token in range(vocab) if allows(mask, token)}


def test_a_banned_sequence_lacks_its_last_token_where_the_others_stand_before_it() -> None:
    banned = BannedSequences([(3,), (5, 6, 7), (6, 9)], 40)
    every = set(range(40)) - {3}
    assert allowed(banned.mask([])) == every
    assert allowed(banned.mask([5, 6])) == every - {7, 9}
    assert allowed(banned.mask([6, 5])) == every
    assert allowed(banned.mask([6])) == every - {9}


def test_end_tokens_come_back_when_the_output_is_long_enough() -> None:
    least = LeastLength(2, [4, 39], 40)
    assert allowed(least.mask([])) == allowed(least.mask([1])) == set(range(40)) - {4, 39}
    assert least.mask([1, 2]) is None


def test_all_constraints_hold_together() -> None:
    sampling = SamplingOptions(allowed_token_ids=(1, 2, 3, 4), min_tokens=1)
    constraints = constraints_of(sampling, [(2,)], [4], 40)
    assert allowed(mask_after(constraints, [])) == {1, 3}
    assert allowed(mask_after(constraints, [1])) == {1, 3, 4}
    assert constraints_of(SamplingOptions(), [], [4], 40) == ()


def tokens(answer: Sequence[TokenDelta]) -> list[int]:
    return [token for delta in answer for token in delta.tokens]


def test_an_answer_has_none_but_the_allowed_tokens() -> None:
    some = tuple(range(3, VOCAB, 97))
    answer = tokens(run(make_loop(), request("a", 20, max_tokens=60, allowed_token_ids=some))["a", 0])
    assert len(answer) == 60
    assert set(answer) <= set(some)


def test_min_tokens_holds_off_every_end_token() -> None:
    free = tokens(run(make_loop(end_token_ids=()), request("a", 30, max_tokens=50))["a", 0])
    loop = make_loop(end_token_ids=(free[4],))
    held = run(loop, request("a", 30, max_tokens=50, min_tokens=9, stop_token_ids=(free[2],)))["a", 0]
    assert len(tokens(held)) >= 9
    assert free[4] not in tokens(held)[:9]
    assert free[2] not in tokens(held)[:9]
    ended = run(make_loop(end_token_ids=(free[4],)), request("a", 30, max_tokens=50, min_tokens=4))["a", 0]
    assert tokens(ended) == free[:4]
    assert ended[-1].stop_token == free[4]


def test_a_banned_sequence_is_never_completed_and_its_parts_are_free() -> None:
    free = tokens(run(make_loop(end_token_ids=()), request("a", 30, max_tokens=50))["a", 0])
    banned = ((free[10], free[11]), (free[20],))
    held = replace(request("a", 30, max_tokens=50), banned=banned)
    answer = tokens(run(make_loop(end_token_ids=()), held)["a", 0])
    assert answer[:11] == free[:11]
    assert answer[11] != free[11]
    assert free[20] not in answer


def test_what_leaves_no_token_ends_with_the_reason_and_others_go_on() -> None:
    loop = make_loop(end_token_ids=(5,))
    answers = run(
        loop, request("a", 20, max_tokens=9, allowed_token_ids=(5,), min_tokens=3), request("b", 9, max_tokens=9)
    )
    last = answers["a", 0][-1]
    assert (last.finish_reason, last.error, last.tokens) == (FinishReason.ERROR, NOTHING_ALLOWED, ())
    assert len(tokens(answers["b", 0])) == 9


def test_what_is_allowed_is_worked_out_once_for_all_choices() -> None:
    """It takes a millisecond for a list as long as a vocabulary, and a request may have 128 choices."""
    options = SamplingOptions(allowed_token_ids=tuple(range(30)))
    first, second = (constraints_of(options, (), (5,), 40)[0] for _ in range(2))
    assert first is second
    assert allowed(first.mask([])) == set(range(30))


class _GivesUp:
    """A grammar that has any text, and is lost behind three tokens."""

    problem = ""
    over = False

    def __init__(self) -> None:
        self._taken = 0

    def mask(self) -> bytes:
        self.problem = "guided_json: too much" if self._taken >= 3 else ""
        return bytes(mask_bytes(VOCAB)) if self.problem else b"\xff" * mask_bytes(VOCAB)

    def consume(self, tokens: Sequence[int]) -> int:
        self._taken += len(tokens)
        return len(tokens)

    def go_back(self, count: int) -> None:
        self._taken -= count

    def forced(self) -> list[int]:
        return []


class _Grammars:
    def ready(self, grammar: Grammar) -> bool:  # noqa: ARG002
        return True

    def state(self, grammar: Grammar) -> _GivesUp:  # noqa: ARG002
        return _GivesUp()


def test_a_grammar_that_gives_up_ends_its_own_request_with_the_reason() -> None:
    loop = make_loop(grammars=_Grammars())
    answers = run(loop, request("a", 20, max_tokens=9, grammar=Grammar.json_object()), request("b", 9, max_tokens=9))
    last = answers["a", 0][-1]
    assert (last.finish_reason, last.error, last.refused) == (FinishReason.ERROR, "guided_json: too much", True)
    assert len(tokens(answers["a", 0])) == 3
    assert len(tokens(answers["b", 0])) == 9


class _Oracle:
    """Proposes what comes next, and sometimes not."""

    def __init__(self, truth: Sequence[int]) -> None:
        self._truth = list(truth)

    def propose(self, tokens: Sequence[int], limit: int) -> Sequence[int]:
        at = len(tokens)
        right = self._truth[at : at + limit]
        return right if at % 3 else [*right[:1], 998]


@pytest.mark.parametrize("num_blocks", [64, 12])
def test_proposals_and_preemption_change_nothing_under_constraints(num_blocks: int) -> None:
    allowed = tuple(range(0, VOCAB, 7))
    asked = []
    for name in ("a", "b"):
        free = request(name, 40, max_tokens=60, min_tokens=30, allowed_token_ids=allowed)
        said = tokens(run(make_loop(), free)[name, 0])
        asked.append(replace(free, banned=tuple(zip(said[4::9], said[5::9], strict=False))))
    alone = [tokens(run(make_loop(), one)[one.request_id, 0]) for one in asked]
    oracle = _Oracle([*asked[0].prompt, *alone[0]])
    both = run(make_loop(num_blocks=num_blocks, proposer=oracle, max_proposed=4, max_step_tokens=16), *asked)
    assert [tokens(both[one.request_id, 0]) for one in asked] == alone
    assert all(set(one) <= set(allowed) for one in alone)


def budget(count: int, *, opened: bool, begin: int = 11, end: int = 12) -> ReasoningBudget:
    return ReasoningBudget(tokens=count, open=begin, close=end, opened=opened)


def test_the_mark_that_ends_reasoning_is_all_that_may_follow_a_budget_that_is_used_up() -> None:
    opened = ReasoningLimit(budget(2, opened=True), 40)
    assert opened.mask([]) is opened.mask([1]) is None
    assert allowed(opened.mask([1, 2])) == {12}
    assert opened.mask([1, 2, 12]) is opened.mask([1, 12]) is opened.mask([12, 3]) is None
    assert allowed(ReasoningLimit(budget(0, opened=True), 40).mask([])) == {12}


def test_reasoning_begins_at_the_mark_that_the_answer_begins_with() -> None:
    limit = ReasoningLimit(budget(2, opened=False), 40)
    assert limit.mask([1, 2]) is limit.mask([1, 2, 3, 4]) is None
    assert allowed(limit.mask([11, 1, 2])) == {12}
    assert allowed(limit.mask([5, 11, 1, 2])) == {12}
    assert limit.mask([5, 11, 1]) is None
    assert limit.mask([1, 2, 3, 4, 11, 5, 6]) is None, "a mark further on is content"
    assert allowed(ReasoningLimit(budget(0, opened=False), 40).mask([11])) == {12}


@pytest.mark.parametrize("opened", [False, True])
def test_an_answer_has_the_closing_mark_where_its_budget_ends_and_is_free_otherwise(opened: bool) -> None:
    free = tokens(run(make_loop(end_token_ids=()), request("a", 30, max_tokens=40))["a", 0])
    asked = request("a", 30, max_tokens=40)
    begin, end = free[0], next(token for token in range(VOCAB) if token not in free)
    kept = replace(asked, reasoning=budget(9, opened=opened, begin=begin, end=end))
    answer = tokens(run(make_loop(end_token_ids=()), kept)["a", 0])
    place = 9 if opened else 10
    assert answer[:place] == free[:place]
    assert answer[place] == end
    assert len(answer) == 40
    early = replace(asked, reasoning=budget(9, opened=opened, begin=begin, end=free[4]))
    assert tokens(run(make_loop(end_token_ids=()), early)["a", 0]) == free
    unopened = replace(asked, reasoning=budget(9, opened=False, begin=end, end=end))
    assert tokens(run(make_loop(end_token_ids=()), unopened)["a", 0]) == free


@pytest.mark.parametrize("num_blocks", [64, 12])
def test_a_budget_is_kept_under_proposals_and_preemption_and_by_each_choice(num_blocks: int) -> None:
    asked = []
    for name in ("a", "b"):
        free = replace(request(name, 40, max_tokens=60), reasoning=budget(25, opened=True, end=998))
        asked.append(replace(free, sampling=replace(free.sampling, n=2, temperature=1.0, seed=7)))
    loop = make_loop(end_token_ids=(), num_blocks=256)
    alone = {key: tokens(said) for one in asked for key, said in run(loop, one).items()}
    assert all(said[25] == 998 and 998 not in said[:25] for said in alone.values())
    assert alone["a", 0] != alone["a", 1]
    oracle = _Oracle([*asked[0].prompt, *alone["a", 0]])
    settings = {"num_blocks": num_blocks, "proposer": oracle, "max_proposed": 4, "max_step_tokens": 16}
    both = run(make_loop(end_token_ids=(), **settings), *asked)
    assert {key: tokens(said) for key, said in both.items()} == alone

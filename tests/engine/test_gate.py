"""Grammars compile beside the loop: steps go on, a refusal names the field, and whoever leaves is forgotten."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.engine.scripted import END, VOCAB, make_loop, request
from tidemill.core.errors import InvalidRequest, Overloaded
from tidemill.core.grammar import Grammar
from tidemill.core.mask import only
from tidemill.core.tokens import TokenDelta, TokenRequest
from tidemill.engine.gate import GATE_SECONDS, MAX_COMPILING, Gate
from tidemill.engine.turn import Turns
from tidemill.engine.wire import Abort, Outbox, command

SLOW = Grammar.choice(["slow"])
BAD = Grammar.choice(["bad"])


class Line:
    """A grammar of one text: these tokens, then the end."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = tokens
        self._at = 0

    def mask(self) -> bytes:
        return only([*self._tokens, END][self._at : self._at + 1], VOCAB)

    def consume(self, tokens: Sequence[int]) -> int:
        taken = 0
        while taken < len(tokens) and self._tokens[self._at : self._at + 1] == [tokens[taken]]:
            taken += 1
            self._at += 1
        return taken

    def go_back(self, count: int) -> None:
        self._at -= count

    def forced(self) -> list[int]:
        return list(self._tokens[self._at :])

    problem = ""

    @property
    def over(self) -> bool:
        return self._at == len(self._tokens)


class Compiler:
    """Compiles when it is let; remembers what it compiled."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.compiled: list[Grammar] = []

    def ready(self, grammar: Grammar) -> bool:
        return grammar in self.compiled

    def state(self, grammar: Grammar) -> Any:
        if grammar not in self.compiled:
            assert self.go.wait(20)
            if grammar == BAD:
                raise InvalidRequest("it is bad", param="guided_choice")
            self.compiled.append(grammar)
        return Line([15, 16, 17, 18])


def asking(name: str, grammar: Grammar, **sampling: object) -> TokenRequest:
    plain = request(name, 20, **{"max_tokens": 9, **sampling})
    return replace(plain, sampling=replace(plain.sampling, grammar=grammar))


def until(turns: Turns, enough: Callable[[list[Outbox]], bool]) -> list[Outbox]:
    """Turn until there is enough."""
    boxes: list[Outbox] = []
    end = time.monotonic() + 20
    while not enough(boxes):
        assert time.monotonic() < end, boxes
        boxes.append(turns.turn([]))
        time.sleep(turns.pause or 0)
    return boxes


def tokens_of(boxes: Sequence[Outbox], name: str) -> list[int]:
    return [token for box in boxes for delta in box.deltas if delta.request_id == name for token in delta.tokens]


def ended(boxes: Sequence[Outbox], name: str) -> bool:
    return any(delta.request_id == name and delta.finish_reason for box in boxes for delta in box.deltas)


def test_others_are_answered_while_a_grammar_compiles_and_then_it_is_kept_to() -> None:
    compiler = Compiler()
    turns = Turns(make_loop(grammars=compiler))
    first = turns.turn([command(asking("a", SLOW)), command(request("b", 20, max_tokens=9))])
    boxes = [first, *until(turns, lambda boxes: ended(boxes, "b"))]
    assert len(tokens_of(boxes, "b")) == 9
    assert turns.pause == GATE_SECONDS
    compiler.go.set()
    boxes = until(turns, lambda boxes: ended(boxes, "a"))
    assert tokens_of(boxes, "a") == [15, 16, 17, 18]
    last = [delta for box in boxes for delta in box.deltas][-1]
    assert (last.finish_reason, last.num_output_tokens) == ("stop", 4)
    assert turns.pause is None
    turns.close()


def test_a_grammar_that_is_known_waits_for_nothing() -> None:
    compiler = Compiler()
    compiler.compiled.append(SLOW)
    turns = Turns(make_loop(grammars=compiler))
    assert turns.turn([command(asking("a", SLOW))]).deltas
    turns.close()


def test_forced_tokens_take_one_step_and_are_the_same_without() -> None:
    def steps(*, without: tuple[str, ...] = (), **settings: Any) -> tuple[int, int, list[int]]:
        compiler = Compiler()
        compiler.compiled.append(SLOW)
        loop = make_loop(grammars=compiler, **settings)
        turns = Turns(loop)
        boxes = [
            turns.turn([command(replace(asking("a", SLOW), without=without))]),
            *until(turns, lambda boxes: ended(boxes, "a")),
        ]
        turns.close()
        return loop.stats().steps, loop.stats().jumped_tokens_total, tokens_of(boxes, "a")

    assert steps(max_running=64) == (2, 2, [15, 16, 17, 18])
    assert steps(max_running=1) == (4, 0, [15, 16, 17, 18])  # no row of outputs is to spare
    assert steps(max_running=64, jump_ahead="off") == (4, 0, [15, 16, 17, 18])
    assert steps(max_running=64, without=("jump-ahead",)) == (4, 0, [15, 16, 17, 18])


def test_a_grammar_that_is_refused_is_a_reject_with_its_field() -> None:
    compiler = Compiler()
    compiler.go.set()
    turns = Turns(make_loop(grammars=compiler))
    box = turns.turn([command(asking("a", BAD))])
    boxes = [box, *until(turns, lambda boxes: box.rejects or any(one.rejects for one in boxes))]
    (reject,) = (reject for box in boxes for reject in box.rejects)
    assert (reject.request_id, reject.failure.message, reject.failure.param) == ("a", "it is bad", "guided_choice")
    assert turns.pause is None
    turns.close()


def test_who_leaves_while_it_waits_is_forgotten() -> None:
    compiler = Compiler()
    loop = make_loop(grammars=compiler)
    turns = Turns(loop)
    turns.turn([command(asking("a", SLOW)), command(asking("b", SLOW))])
    turns.turn([Abort("a")])
    compiler.go.set()
    boxes = until(turns, lambda boxes: ended(boxes, "b"))
    assert tokens_of(boxes, "a") == []
    assert turns.pause is None
    turns.close()


def test_there_is_an_end_to_how_many_wait() -> None:
    compiler = Compiler()
    gate = Gate(compiler)
    for number in range(MAX_COMPILING):
        assert not gate.passes(asking(str(number), SLOW))
    with pytest.raises(Overloaded, match="256 requests wait"):
        gate.passes(asking("more", SLOW))
    assert gate.passes(request("plain", 5))
    compiler.go.set()
    gate.close()


def test_without_a_compiler_a_grammar_is_refused() -> None:
    turns = Turns(make_loop())
    (reject,) = turns.turn([command(asking("a", SLOW))]).rejects
    assert reject.failure.param == "grammar"


def test_every_choice_keeps_to_a_grammar_of_its_own() -> None:
    compiler = Compiler()
    compiler.compiled.append(SLOW)
    loop = make_loop(grammars=compiler)
    loop.add(asking("a", SLOW, n=3, temperature=1.0))
    deltas: list[TokenDelta] = []
    while loop.has_work:
        deltas += loop.step()
    for choice in range(3):
        assert [t for delta in deltas if delta.choice == choice for t in delta.tokens] == [15, 16, 17, 18]
    loop.check_idle()


class Counted:
    """A grammar of twelve tokens, odd and even by turns, so that a token too many or too few changes every mask."""

    def __init__(self) -> None:
        self._at = 0

    def mask(self) -> bytes:
        return only([END] if self.over else range(100 + self._at % 2, 200, 2), VOCAB)

    def consume(self, tokens: Sequence[int]) -> int:
        taken = 0
        while taken < len(tokens) and not self.over and tokens[taken] % 2 == self._at % 2:
            taken += 1
            self._at += 1
        return taken

    def go_back(self, count: int) -> None:
        self._at -= count

    def forced(self) -> list[int]:
        return []

    problem = ""

    @property
    def over(self) -> bool:
        return self._at == 12


class _Guesses:
    """Proposes what the grammar would take, and now and then what the model draws."""

    def __init__(self, truth: Sequence[int]) -> None:
        self._truth = truth

    def propose(self, tokens: Sequence[int], limit: int) -> Sequence[int]:
        output = len(tokens) - 20
        return [self._truth[i] if i % 3 else 150 + i % 2 for i in range(output, min(output + limit, 12))]


def test_proposals_that_the_grammar_takes_and_the_draw_does_not_are_taken_back() -> None:
    class Source(Compiler):
        def state(self, grammar: Grammar) -> Any:  # noqa: ARG002
            return Counted()

    def answer(**options: Any) -> list[int]:
        loop = make_loop(grammars=Source(), **options)
        loop.add(asking("a", SLOW, max_tokens=30))
        deltas: list[TokenDelta] = []
        while loop.has_work:
            deltas += loop.step()
        assert deltas[-1].finish_reason == "stop"
        return [token for delta in deltas for token in delta.tokens]

    plain = answer()
    assert len(plain) == 12
    assert answer(proposer=_Guesses(plain), max_proposed=5) == plain

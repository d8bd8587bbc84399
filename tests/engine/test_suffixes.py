"""Guesses from earlier answers: the longest match is found, nobody sees another tenant's, and memory has a bound."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.tiny import Rig, request, run, tiny_model
from tidemill.core.step import RowOptions, SequenceId
from tidemill.core.tokens import TokenRequest
from tidemill.engine.proposer import Asked
from tidemill.engine.suffix_automaton import Match, SuffixAutomaton
from tidemill.engine.suffixes import SuffixProposer

TEXTS = st.lists(st.lists(st.integers(0, 3), max_size=12), max_size=6)


@settings(max_examples=200, deadline=None)
@given(texts=TEXTS, late=TEXTS, said=st.lists(st.integers(0, 4), max_size=20))
def test_the_longest_end_that_is_in_the_texts_is_found_and_what_followed_it(
    texts: list[list[int]], late: list[list[int]], said: list[int]
) -> None:
    """Against looking everywhere; some texts are added on the way."""
    automaton, match = SuffixAutomaton(), Match()
    known: list[list[int]] = []
    for text in texts:
        automaton.add(text)
        known.append(text)
    for at, token in enumerate(said):
        if at % 4 == 3 and late:
            known.append(late.pop())
            automaton.add(known[-1])
            match = Match()
            automaton.follow(match, said[:at])
        automaton.follow(match, [token])
        end = said[: at + 1]
        ends = [end[start:] for start in range(len(end) + 1)]
        assert match.length == len(next(part for part in ends if not part or any(_in(part, text) for text in known)))
        if match.length:
            found = list(automaton.after(match, 5))
            assert any(_in([*end[len(end) - match.length :], *found], text) for text in known)
            assert len(found) == 5 or any(_ends([*end[len(end) - match.length :], *found], text) for text in known)


def _in(part: Sequence[int], text: Sequence[int]) -> bool:
    return any(list(text[at : at + len(part)]) == list(part) for at in range(len(text) - len(part) + 1))


def _ends(part: Sequence[int], text: Sequence[int]) -> bool:
    return list(text[len(text) - len(part) :]) == list(part)


def test_it_has_at_most_two_states_per_token() -> None:
    numbers = random.Random(1)
    for vocabulary in (1, 2, 50):
        automaton = SuffixAutomaton()
        automaton.add(numbers.randrange(vocabulary) for _ in range(3000))
        assert len(automaton._next) <= 2 * 3001
        assert sum(map(len, automaton._next)) <= 3 * 3001


def test_of_places_that_match_alike_the_latest_is_taken() -> None:
    automaton, match = SuffixAutomaton(), Match()
    automaton.add([1, 2, 3, 4])
    automaton.add([1, 2, 3, 5])
    automaton.follow(match, [1, 2, 3])
    assert list(automaton.after(match, 3)) == [5]


def asked(tokens: Sequence[int], tenant: str = "", salt: str = "", sequence: int = 9) -> Asked:
    return Asked(
        sequence=SequenceId(sequence),
        tokens=tokens,
        num_prompt=1,
        scope=(tenant, salt),
        limit=4,
        options=lambda _: RowOptions(),
    )


def test_what_one_tenant_was_told_is_guessed_for_nobody_else() -> None:
    proposer = SuffixProposer(1000)
    proposer.leave(SequenceId(0), [9, 1, 2, 3, 4, 5], 1, ("a", ""))
    assert [list(found) for found in proposer.propose([asked([1, 2, 3], "a")])] == [[4, 5]]
    assert proposer.propose([asked([1, 2, 3], "b"), asked([1, 2, 3], "a", "salt"), asked([1, 2, 3])]) == [(), (), ()]
    proposer.forget("b")
    assert proposer.propose([asked([1, 2, 3], "a")]) == [[4, 5]]
    proposer.forget("a")
    assert proposer.propose([asked([1, 2, 3], "a")]) == [()]


def test_a_sequence_is_followed_as_it_grows_and_answers_come() -> None:
    proposer = SuffixProposer(1000)
    proposer.leave(SequenceId(0), [9, 1, 2, 3, 4, 5, 6, 7], 1, ("", ""))
    tokens = [1, 2]
    assert proposer.propose([asked(tokens)]) == [()]
    tokens += [3]
    assert list(proposer.propose([asked(tokens)])[0]) == [4, 5, 6, 7]
    tokens += [8, 8]
    assert proposer.propose([asked(tokens)]) == [()]
    proposer.leave(SequenceId(1), [9, 8, 8, 8, 1], 1, ("", ""))
    tokens += [8]
    assert list(proposer.propose([asked(tokens)])[0]) == [1]
    proposer.leave(SequenceId(9), tokens, 1, ("", ""))
    assert not proposer._readers


def test_memory_has_a_bound_and_the_tenant_that_was_longest_without_an_answer_goes_first() -> None:
    numbers = random.Random(2)
    proposer = SuffixProposer(400)
    for number in range(300):
        tenant = f"t{numbers.randrange(6)}"
        text = [9, *(numbers.randrange(1000) for _ in range(numbers.randrange(1, 300)))]
        proposer.leave(SequenceId(number), text, 1, (tenant, ""))
        assert proposer._size == sum(map(len, proposer._answers.values())) <= 400
        assert list(proposer._answers)[-1:] == [(tenant, "")]
        assert list(proposer.propose([asked(text[-8:-1], tenant, sequence=number)])[0]) in ([], text[-1:])


def test_the_older_half_of_a_tenants_answers_goes() -> None:
    proposer = SuffixProposer(200)
    for number in range(20):
        proposer.leave(SequenceId(number), [9, *(100 * number + at for at in range(10))], 1, ("", ""))
    found = [bool(proposer.propose([asked([100 * n + at for at in range(5)], sequence=n)])[0]) for n in range(20)]
    assert found == sorted(found)
    assert 3 <= sum(found) <= 9


MODEL = tiny_model()
ONE = request("a", [5, 9, 7, 30], max_tokens=80, temperature=0.8, seed=3)


@pytest.mark.parametrize(
    ("second", "right"),
    [
        (replace(ONE, request_id="b"), True),
        (replace(ONE, request_id="b", tenant="other"), False),
        (replace(ONE, request_id="b", cache_salt="s"), False),
        (replace(ONE, request_id="b", without=("suffix-speculation",)), False),
    ],
    ids=["again", "another tenant", "another salt", "without"],
)
def test_an_answer_that_was_given_before_takes_few_steps(second: TokenRequest, right: bool) -> None:
    loop = Rig(model=MODEL, speculate="suffix").make_loop()
    first = run(loop, [ONE])["a", 0]
    before = loop.stats()
    assert run(loop, [second])["b", 0] == first
    stats = loop.stats()
    guessed = stats.draft_tokens_total.get("suffix", 0) - before.draft_tokens_total.get("suffix", 0)
    assert (stats.steps - before.steps < 25) is right
    assert (guessed > 60) is right
    if second.tenant == "other":
        loop.reset_cache("")
        run(loop, [replace(ONE, request_id="c")])
        assert loop.stats().steps - stats.steps > 70, "the tenant's answers were forgotten"
    loop.close()

"""A smaller model that writes ahead: its tokens are the guesses.

It has an executor and KV blocks of its own. For each sequence it keeps what it has computed; what the target did not
take is computed over:

    target     t0 .. t7 | d0 d1 d2         three tokens proposed
    kept       t0 .. t7   d0 s1            d0 was right, s1 was drawn where d1 was not
    here       t0 .. t7   d0 | s1          computed up to d0: the next draft begins with s1

What is there of a prompt that begins like another is not read again (``draft_places``).

It draws by the target's options and with the target's noise (a function of seed, choice and position): where the two
models agree about what is likely, they draw the same token, at any temperature.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace

import numpy as np

from tidemill.core.step import PlanRow, RowOptions, SequenceId, StepPlan
from tidemill.engine.draft_places import DraftPlace, DraftPlaces
from tidemill.engine.proposer import Asked
from tidemill.executors.protocol import Executor
from tidemill.executors.reference.sampler import draw, probabilities
from tidemill.scheduling.kv.cache import BlockKey
from tidemill.scheduling.prefix import CacheCounts

__all__ = ["DraftModelProposer"]

_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class _Draft:
    """One sequence's part of a round."""

    asked: Asked
    place: DraftPlace
    said: list[int] = field(default_factory=list)
    guessed: list[bytes] = field(default_factory=list)
    """How likely each token of the target's was, where that is asked for."""
    over: bool = False
    """It has drawn a token that the target has not got."""


class DraftModelProposer:
    """Proposes what another model with the same tokenizer draws."""

    kind = "draft"

    def __init__(
        self,
        executor: Executor,
        places: DraftPlaces,
        *,
        max_step_tokens: int,
        max_tokens: int,
        vocab_size: int,
        masked: bool,
        rejection: bool = False,
    ) -> None:
        """``max_tokens``: most tokens of a sequence that the model was made for. ``vocab_size``: the target's, of which
        proposals are. ``masked``: the model has just as many, so the target's masks fit its draws. ``rejection``:
        it has to say how likely its tokens were."""
        self._rejection = rejection
        self._guessed: dict[SequenceId, tuple[bytes | None, ...]] = {}
        self._executor = executor
        self._places = places
        self._max_step_tokens = max_step_tokens
        self._max_tokens = min(max_tokens, places.capacity_tokens)
        self._vocab_size = vocab_size
        self._masked = masked
        self._steps = 0
        self._broken = False

    @property
    def reads(self) -> CacheCounts:
        """See Proposer."""
        return self._places.counts

    def propose(self, asked: Sequence[Asked]) -> Sequence[Sequence[int]]:
        """See Proposer. A model that fails is not asked again: answers go on without it."""
        if self._broken:
            return [()] * len(asked)
        try:
            return self._propose(asked)
        except Exception:
            self._broken = True
            _log.exception("the draft model failed; nothing is guessed by it any more")
            return [()] * len(asked)

    def _propose(self, asked: Sequence[Asked]) -> Sequence[Sequence[int]]:
        self._places.expire()
        drafts = {one.sequence: _Draft(asked=one, place=self._places.place(one)) for one in asked}
        held = drafts.keys()
        going = self._catch_up(list(drafts.values()), held)
        while going := [one for one in going if len(one.said) < one.asked.limit and self._may_go_on(one, held)]:
            rows = [self._row(one, [one.said[-1]], drawn=True) for one in going]
            self._run(going, rows)
        self._guessed = {one.asked.sequence: tuple(one.guessed) for one in drafts.values() if one.guessed}
        return [drafts[one.sequence].said for one in asked]

    def _catch_up(self, drafts: list[_Draft], held: Set[SequenceId]) -> list[_Draft]:
        """Compute what sequences have that the model has not read: those that are ready then have their first token.
        A long prompt takes several rounds, in each as much as a step may have. Of those that begin alike the first one
        computes, and the others take that and go on behind it."""
        budget, waiting = self._max_step_tokens, drafts
        while waiting and budget > 0:
            taking, rows, later = [], [], []
            computing: set[BlockKey] = set()
            for one in waiting:
                tokens = one.asked.tokens
                self._places.adopt(one.place, tokens)
                key = self._places.next_key(one.place)
                if key in computing:
                    later.append(one)
                    continue
                known = len(one.place.tokens)
                count = min(len(tokens) - known, budget)
                if count < 1 or not self._grow(one.place, known + count, held):
                    continue
                if key is not None:
                    computing.add(key)
                budget -= count
                taking.append(one)
                rows.append(self._row(one, tokens[known : known + count], drawn=known + count == len(tokens)))
            if rows:
                self._run(taking, rows)
            for one in taking:
                self._places.settle(one.place)
            waiting = later
        return [one for one in drafts if one.said]

    def _may_go_on(self, one: _Draft, held: Set[SequenceId]) -> bool:
        return not one.over and self._grow(one.place, len(one.place.tokens) + 1, held)

    def _row(self, one: _Draft, tokens: Sequence[int], *, drawn: bool) -> PlanRow:
        start = len(one.place.tokens)
        one.place.tokens += tokens
        return PlanRow(
            sequence=one.asked.sequence,
            tokens=tuple(tokens),
            start=start,
            block_tables=tuple(tuple(table) for table in one.place.tables),
            num_outputs=int(drawn),
            options=self._options(one) if drawn else None,
        )

    def _options(self, one: _Draft) -> RowOptions:
        options = one.asked.options(one.said)
        return options if self._masked or options.masks is None else replace(options, masks=None)

    def _run(self, drafts: Sequence[_Draft], rows: Sequence[PlanRow]) -> None:
        plan = StepPlan(step=self._steps, rows=tuple(rows))
        self._steps += 1
        if self._rejection:
            self._draw(drafts, plan)
            return
        self._executor.submit(plan)
        for one, outputs in zip(drafts, self._executor.collect().rows, strict=True):
            one.over = any(token >= self._vocab_size for token in outputs.tokens)
            one.said += () if one.over else outputs.tokens

    def _draw(self, drafts: Sequence[_Draft], plan: StepPlan) -> None:
        """As the executor draws, and keep the probabilities."""
        logits = self._executor.logits(plan)
        for index, (one, row) in enumerate(zip(drafts, plan.rows, strict=True)):
            if row.options is None:
                continue
            mask = row.options.masks[0] if row.options.masks else None
            own = logits[index][0][: self._vocab_size]
            position = row.start + len(row.tokens)
            one.said.append(draw(own, row.options, proposals=(), position=position, mask=mask))
            guessed = probabilities(own, row.options, proposals=(), mask=mask).astype("<f4")
            one.guessed.append(np.pad(guessed, (0, self._vocab_size - len(guessed))).tobytes())

    def _grow(self, place: DraftPlace, num_tokens: int, held: Set[SequenceId]) -> bool:
        return num_tokens <= self._max_tokens and self._places.grow(place, num_tokens, held)

    def probabilities(self, sequence: SequenceId) -> tuple[bytes | None, ...]:
        """See Proposer."""
        return self._guessed.get(sequence, ())

    def leave(self, sequence: SequenceId, tokens: Sequence[int], num_prompt: int, scope: tuple[str, str]) -> None:  # noqa: ARG002
        """See Proposer."""
        self._places.leave(sequence, tokens)

    def forget(self, tenant: str | None) -> None:
        """See Proposer: a tenant's keys are other ones from now on."""
        if tenant is None:
            self._places.forget()

    def close(self) -> None:
        """See Proposer."""
        self._places.close()
        self._executor.close()

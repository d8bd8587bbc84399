"""Rejection sampling of proposals: answers follow the target's probabilities, whatever the proposals (Leviathan et al.
2023, Chen et al. 2023).

    p: probabilities of the target, q: of whoever proposed x
    x is accepted with probability min(1, p(x) / q(x)); else a token is drawn from the residual, max(0, p - q), and ends
    the step; where all were accepted a token more is drawn from p: the step has computed it anyway

Proposals of a text, not of a model, are certain: q(x) = 1, so x is accepted with probability p(x), and the residual is
p without x.

The numbers that decide are functions of seed, choice and position too, independent of those that tokens are drawn with.
But what is said depends on what was proposed: the answer is not bit for bit the one without, as it is where a proposal
counts exactly if it is what would have been drawn.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from tidemill.core.step import PlanRow, RowOptions, RowOutputs, StepPlan, StepResult
from tidemill.executors.protocol import Executor
from tidemill.executors.reference.noise import gumbel, uniform
from tidemill.executors.reference.sampler import draw, log_probabilities, probabilities

__all__ = ["RejectionSampling", "accepts", "residual"]

_ACCEPT_STREAM: Final = 1
_RESIDUAL_STREAM: Final = 2
Probabilities = npt.NDArray[np.float64]


def accepts(p: Probabilities, q: Probabilities | None, token: int, number: float) -> bool:
    """True if a proposal is accepted, by a number in (0, 1). q None: it was certain to be proposed."""
    return bool(number * (1.0 if q is None else q[token]) < p[token])


def residual(p: Probabilities, q: Probabilities | None, token: int) -> Probabilities:
    """What a token is drawn from where the proposal was not accepted, not normalised."""
    if q is not None:
        return np.maximum(p - q, 0.0)
    left = p.copy()
    left[token] = 0.0
    return left


class RejectionSampling:
    """Runs steps on an executor and settles the rows that have proposals; other rows are drawn as always."""

    def concerns(self, plan: StepPlan) -> bool:
        """True if a row has proposals."""
        return any(map(_num_guessed, plan.rows))

    def run(self, executor: Executor, plan: StepPlan) -> StepResult:
        """The result of the whole plan. A row's tokens are its accepted proposals, the token that came instead of the
        first that was not, or one more, and then some that mean nothing."""
        begin = time.perf_counter()
        own = [row for row in plan.rows if _num_guessed(row)]
        logits = executor.logits(replace(plan, rows=tuple(own), profile=False))
        settled = iter([_settle(row, logits[index]) for index, row in enumerate(own)])
        seconds = time.perf_counter() - begin
        others = tuple(row for row in plan.rows if not _num_guessed(row))
        plain = StepResult(step=plan.step, rows=())
        if others:
            executor.submit(replace(plan, rows=others))
            plain = executor.collect()
        drawn = iter(plain.rows)
        rows = tuple(next(settled) if _num_guessed(row) else next(drawn) for row in plan.rows)
        return replace(plain, rows=rows, seconds=seconds + plain.seconds)


def _num_guessed(row: PlanRow) -> int:
    targets = len(row.options.targets) if row.options is not None else 0
    return max(0, row.num_outputs - targets - 1)


def _settle(row: PlanRow, logits: npt.NDArray[np.float32]) -> RowOutputs:
    options = row.options
    assert options is not None
    scored, count = len(options.targets), _num_guessed(row)
    proposals = list(row.tokens[len(row.tokens) - count :])
    position = row.start + len(row.tokens) - count
    masks = options.masks or (None,) * row.num_outputs
    tokens = [*options.targets, *proposals, 0]
    for place in range(count + 1):
        output = scored + place
        given = {"proposals": proposals[:place], "mask": masks[output]}
        if place == count:
            tokens[output] = draw(logits[output], options, position=position + place, **given)  # type: ignore[arg-type]
            break
        p = probabilities(logits[output], options, **given)  # type: ignore[arg-type]
        q = _guessed(options, place)
        numbers = {"seed": options.seed, "choice": options.choice, "position": position + place}
        if not accepts(p, q, proposals[place], float(uniform(1, stream=_ACCEPT_STREAM, **numbers)[0])):
            left = residual(p, q, proposals[place])
            with np.errstate(divide="ignore"):
                noisy = np.log(left) + gumbel(len(left), stream=_RESIDUAL_STREAM, **numbers)
            tokens[output] = int(noisy.argmax())
            break
    said = None
    if options.logprobs is not None:
        said = tuple(log_probabilities(logits[at], token, options.logprobs) for at, token in enumerate(tokens))
    return RowOutputs(tokens=tuple(tokens), logprobs=said)


def _guessed(options: RowOptions, place: int) -> Probabilities | None:
    data = options.guessed[place] if options.guessed else None
    return None if data is None else np.frombuffer(data, "<f4").astype(np.float64)

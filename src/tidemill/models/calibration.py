"""How far two ways to run a model are apart: logits of a short text, position by position.

KL(exact || other) = sum_v p(v) (log p(v) - log q(v)), in nats, the mean over positions
perplexity         = exp(mean of -log p(next token of the text))
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tidemill.core.step import PlanRow, RowOptions, SequenceId, StepPlan
from tidemill.executors.protocol import Executor
from tidemill.models.calibration_text import CALIBRATION_TEXT
from tidemill.models.model import Model
from tidemill.text.tokenizer import build_tokenizer

__all__ = ["CHUNK", "MOST_SECONDS", "Figures", "calibration_tokens", "figures", "text_logits"]

Floats = npt.NDArray[np.float32]
CHUNK = 32
"""Tokens of a step: little workspace, and time is asked after each."""
MOST_SECONDS = 20.0
"""After this long a text ends where it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of one text."""

    positions: int
    mean_kl: float
    """Nats."""
    agreement: float
    """Share of positions with the same most likely token."""
    perplexity: float
    """Of the other way."""
    exact_perplexity: float


def calibration_tokens(model: Model, count: int) -> list[int]:
    """The first tokens of the built-in text, as many of ``count`` as the model has positions for."""
    tokens = [token for token in build_tokenizer(model.text).encode(CALIBRATION_TEXT) if token < model.vocab_size]
    return tokens[: min(count, model.max_position)]


def text_logits(
    executor: Executor,
    tokens: Sequence[int],
    num_blocks: Sequence[int],
    block_size: int,
    seconds: float = math.inf,
) -> Floats:
    """Logits [tokens, vocabulary] of as many tokens as there is time for, at least one chunk.

    ``num_blocks``: of each KV group's pool, all free to use; a pool too small for the text is a window's, and its
    blocks are used again.
    """
    until = time.monotonic() + seconds
    needed = -(-len(tokens) // block_size)
    tables = tuple(tuple(block % blocks for block in range(needed)) for blocks in num_blocks)
    rows = []
    for step, begin in enumerate(range(0, len(tokens), CHUNK)):
        part = tokens[begin : begin + CHUNK]
        row = PlanRow(
            sequence=SequenceId(0),
            tokens=part,
            start=begin,
            block_tables=tables,
            num_outputs=len(part),
            options=RowOptions(),
        )
        rows.append(executor.logits(StepPlan(step=step, rows=(row,)))[0])
        if time.monotonic() > until:
            break
    return np.concatenate(rows)


def figures(exact: Floats, other: Floats, tokens: Sequence[int]) -> Figures:
    """Compare logits [tokens, vocabulary] row by row, in float64."""
    kl, same, losses = [], [], []
    with np.errstate(all="ignore"):  # what is no number gives figures that are none
        for position, (one, two) in enumerate(zip(exact, other, strict=True)):
            p, q = _log_softmax(one), _log_softmax(two)
            kl.append(float((np.exp(p) * (p - q)).sum()))
            same.append(p.argmax() == q.argmax())
            if position + 1 < len(tokens):
                losses.append((-p[tokens[position + 1]], -q[tokens[position + 1]]))
        exact_perplexity, perplexity = np.exp(np.mean(losses, axis=0))
    return Figures(
        positions=len(kl),
        mean_kl=float(np.mean(kl)),
        agreement=float(np.mean(same)),
        perplexity=float(perplexity),
        exact_perplexity=float(exact_perplexity),
    )


def _log_softmax(logits: Floats) -> npt.NDArray[np.float64]:
    row = logits.astype(np.float64)
    row -= row.max()
    shifted: npt.NDArray[np.float64] = row - np.log(np.exp(row).sum())
    return shifted

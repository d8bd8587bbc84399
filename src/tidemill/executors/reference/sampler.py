"""The draw of one token, as csrc/kernels/sampler.h describes it, step by step in numpy."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tidemill.core.sampling import GREEDY_TEMPERATURE
from tidemill.core.step import RowOptions, TokenLogprob
from tidemill.executors.reference.noise import gumbel

__all__ = ["draw", "log_probabilities", "probabilities"]

Logits = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

_LARGEST = float(np.finfo(np.float32).max)


def draw(
    logits: Logits, options: RowOptions, *, proposals: Sequence[int], position: int, mask: bytes | None = None
) -> int:
    """The token drawn from raw logits [vocab].

    ``proposals`` are tokens assumed to follow those that the options count; ``position`` is that of the drawn token,
    and ``mask`` says which may be.
    """
    adjusted = _allowed(_adjusted(_finite(logits), options, proposals), mask)
    if options.temperature <= GREEDY_TEMPERATURE or adjusted.max() == -np.inf:
        return int(adjusted.argmax())
    tempered: Logits = (adjusted - adjusted.max()) / np.float32(options.temperature)
    kept = np.sort(_kept(adjusted, tempered, options))
    noise = gumbel(len(logits), seed=options.seed, choice=options.choice, position=position)
    return int(kept[(tempered[kept] + noise[kept]).argmax()])


def probabilities(
    logits: Logits, options: RowOptions, *, proposals: Sequence[int], mask: bytes | None = None
) -> npt.NDArray[np.float64]:
    """How likely ``draw`` draws each token [vocab], with the same arguments."""
    found: npt.NDArray[np.float64] = np.zeros(len(logits))
    adjusted = _allowed(_adjusted(_finite(logits), options, proposals), mask)
    if options.temperature <= GREEDY_TEMPERATURE or adjusted.max() == -np.inf:
        found[adjusted.argmax()] = 1.0
        return found
    tempered: Logits = (adjusted - adjusted.max()) / np.float32(options.temperature)
    kept = _kept(adjusted, tempered, options)
    found[kept] = np.exp(tempered[kept].astype(np.float64))
    found /= found.sum()
    return found


def log_probabilities(logits: Logits, token: int, count: int) -> TokenLogprob:
    """Log-softmax of the raw logits: of the drawn token, and of the ``count`` most likely ones."""
    values = _finite(logits).astype(np.float64)
    highest = values.max()
    values -= highest + math.log(np.exp(values - highest).sum())
    best = _ranked(logits)[:count]
    return TokenLogprob(token=token, logprob=float(values[token]), top=tuple((int(i), float(values[i])) for i in best))


def _finite(logits: Logits) -> Logits:
    """NaN counts as the lowest number, infinities as the largest magnitudes."""
    return np.nan_to_num(logits, nan=-_LARGEST, posinf=_LARGEST, neginf=-_LARGEST)


def _ranked(logits: Logits) -> Ids:
    """Ids by logit, highest first, ties to the lowest id."""
    return np.argsort(-_finite(logits), kind="stable")


def _adjusted(logits: Logits, options: RowOptions, proposals: Sequence[int]) -> Logits:
    """Bias, then the penalties on every token seen."""
    for token, bias in options.logit_bias:
        logits[token] += np.float32(bias)
    if options.penalties is None:
        return logits
    seen = Counter(dict(zip(options.penalties.ids, options.penalties.output_counts, strict=True)))
    seen.update(proposals)
    repetition = np.float32(options.repetition_penalty)
    for token, count in seen.items():
        logit = logits[token]
        logit = logit / repetition if logit > 0 else logit * repetition
        if count > 0:
            logit -= np.float32(options.frequency_penalty) * np.float32(count) + np.float32(options.presence_penalty)
        logits[token] = logit
    return logits


def _allowed(logits: Logits, mask: bytes | None) -> Logits:
    """Nothing that a mask forbids; where it allows no token, token 0 is the largest of all that are forbidden."""
    if mask is not None:
        allowed = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")[: len(logits)].astype(bool)
        logits[~allowed] = -np.inf
    return logits


def _kept(adjusted: Logits, tempered: Logits, options: RowOptions) -> Ids:
    """Ids that top-k, top-p and min-p leave: each keeps a beginning of the ranking, never nothing."""
    ids = _ranked(adjusted)
    if options.top_k > 0:
        ids = ids[: options.top_k]
    if options.top_p < 1.0:
        mass = np.cumsum(np.exp(tempered[ids].astype(np.float64)))
        ids = ids[: int(np.searchsorted(mass, options.top_p * mass[-1])) + 1]
    if options.min_p > 0.0:
        ids = ids[tempered[ids] >= np.float32(math.log(options.min_p))]
    return ids

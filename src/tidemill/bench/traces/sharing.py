"""How prompts go on from earlier prompts where a trace has blocks with names and no sessions, as Mooncake's has.

A request shares a common beginning or none, or it continues an earlier one: it begins with a part of that prompt which
is no common beginning. Continuations have lengths of their own, share a part that depends on their length, and follow
what they continue after a while.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tidemill.bench.traces.beginnings import Beginning, Beginnings, common_beginnings
from tidemill.bench.traces.joint import Joint, fit_joint
from tidemill.bench.traces.quantiles import quantiles_of
from tidemill.bench.traces.row import Segment, TraceRow

__all__ = ["Continuations", "ShareWriter", "Sharing", "fit_sharing"]

_FINEST = 16
_MOST_BLOCKS = 256
_NEAR = 128
"""Earlier requests around the wanted time among which the one to continue is chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuations:
    """Requests that continue earlier ones."""

    share: float
    """Share of the requests that do, of those that come late enough for what they continue to be in the trace."""
    lengths: Joint
    """Prompt and output tokens."""
    parts: Joint
    """Prompt tokens, and the part of them that the earlier prompt had."""
    lags: tuple[float, ...]
    """Quantiles of the seconds since the earlier request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """A model of what prompts begin with."""

    block: int
    """Tokens of the blocks that prompts are compared in."""
    beginnings: tuple[Beginning, ...]
    continued: Continuations | None = None


@dataclass(slots=True)
class _Node:
    last: float = 0.0
    following: dict[tuple[str, int], _Node] = field(default_factory=dict)


def fit_sharing(rows: Sequence[TraceRow]) -> tuple[Sharing, list[int | None]]:
    """Fit requests in order of arrival; also, of each, the tokens of its common beginning, or None where it continues
    an earlier request."""
    common, places = common_beginnings(rows)
    root = _Node()
    common_tokens: list[int | None] = []
    shared, lags = [], []
    for row, place in zip(rows, places, strict=True):
        node, found, new = root, 0, False
        lag = 0.0
        for piece in row.prefix:
            step = node.following.get((piece.id, piece.tokens))
            if step is None:
                new = True
                step = node.following[piece.id, piece.tokens] = _Node()
            elif not new:
                found += piece.tokens
                lag = row.at - step.last
            step.last = row.at
            node = step
        begun = common.tokens(place)
        common_tokens.append(begun if found <= begun else None)
        if found > begun:
            shared.append(found / row.prompt_tokens)
            lags.append(lag)
    chosen = [row for row, begun in zip(rows, common_tokens, strict=True) if begun is None]
    continued = _continuations(chosen, _share(rows, lags), shared, lags)
    return Sharing(block=_block_of(rows), beginnings=common.listed, continued=continued), common_tokens


def _share(rows: Sequence[TraceRow], lags: Sequence[float]) -> float:
    """Share of continuations, had the trace begun long before: at its start what they continue is not in it."""
    ages = np.array([row.at for row in rows]) - rows[0].at
    possible = np.searchsorted(np.sort(lags), ages, side="right").sum() if lags else 0
    return min(1.0, len(lags) ** 2 / float(possible)) if possible else 0.0


def _continuations(
    rows: Sequence[TraceRow], share: float, shared: Sequence[float], lags: Sequence[float]
) -> Continuations | None:
    if not rows:
        return None
    prompts = [row.prompt_tokens for row in rows]
    return Continuations(
        share=round(share, 6),
        lengths=fit_joint(prompts, [row.output_tokens for row in rows]),
        parts=fit_joint(prompts, shared),
        lags=quantiles_of(lags),
    )


def _block_of(rows: Sequence[TraceRow]) -> int:
    """The size that nearly all pieces but the last have, or else one that keeps a prompt's list short."""
    sizes = Counter(piece.tokens for row in rows for piece in row.prefix[:-1])
    if sizes and (most := sizes.most_common(1)[0])[1] >= 0.9 * sizes.total():
        return most[0]
    longest = max(row.prompt_tokens for row in rows)
    return max(_FINEST, 1 << (-(-longest // _MOST_BLOCKS) - 1).bit_length())


class ShareWriter:
    """Gives made requests their beginnings, one after the other in order of arrival."""

    def __init__(self, model: Sharing, numbers: np.random.Generator) -> None:
        self._model, self._numbers = model, numbers
        self._common = Beginnings(model.beginnings)
        self._ats: list[float] = []
        self._paths: list[tuple[Segment, ...]] = []
        self._tokens: list[int] = []
        self._names = 0

    def begin(self, at: float, prompt: int, place: int) -> tuple[Segment, ...]:
        """The beginning of a prompt that continues none; ``place``: which common beginning it has."""
        return self._kept(at, prompt, self._common.path(place))

    def go_on(self, at: float, since: float, prompt: int, continued: Continuations) -> tuple[Segment, ...]:
        """The beginning of a prompt that continues one from about the time ``since``."""
        wanted = min(1.0, continued.parts.second_given(self._numbers, prompt)) * prompt
        near = bisect_left(self._ats, since)
        choice = range(max(0, near - _NEAR), min(len(self._ats), near + _NEAR))
        if not choice:
            return self._kept(at, prompt, ())
        fitting = [place for place in choice if self._tokens[place] >= wanted]
        best = min(fitting, key=self._tokens.__getitem__) if fitting else max(choice, key=self._tokens.__getitem__)
        path: list[Segment] = []
        total = 0
        for piece in self._paths[best]:
            if total + piece.tokens > min(wanted + self._model.block / 2, prompt):
                break
            path.append(piece)
            total += piece.tokens
        return self._kept(at, prompt, tuple(path))

    def _kept(self, at: float, prompt: int, path: tuple[Segment, ...]) -> tuple[Segment, ...]:
        """The path with new blocks up to the prompt's last whole one."""
        block = self._model.block
        own = (prompt - sum(piece.tokens for piece in path)) // block
        path += tuple(Segment(f"b{self._names + number}", block) for number in range(own))
        self._names += own
        self._ats.append(at)
        self._paths.append(path)
        self._tokens.append(sum(piece.tokens for piece in path))
        return path

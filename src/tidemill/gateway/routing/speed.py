"""How fast a replica is, from what has been seen of it and of nothing else: what it says of itself is not asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from tidemill.gateway.routing.line_fit import LineFit

__all__ = ["PRESUMED", "Pace", "Speed", "paces"]

_ENOUGH: Final = 3
"""Measurements from which on a replica's own are believed."""
_USUAL_TOKENS: Final = 1000.0
_USUAL_RUNNING: Final = 4.0
_ALIKE: Final = 1.6
"""Replicas whose measured seconds differ by no more than this factor count as alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Two straight lines: seconds of a prompt by its tokens, seconds of an output token by how many run."""

    prefill_base: float
    prefill_token: float
    decode_base: float
    decode_running: float
    usual_prompt: float = field(init=False, compare=False)
    """Seconds of a usual prompt, and of a token of a usual answer: what replicas are compared by."""
    usual_token: float = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "usual_prompt", self.prefill(_USUAL_TOKENS))
        object.__setattr__(self, "usual_token", self.decode(_USUAL_RUNNING))

    def prefill(self, tokens: float) -> float:
        """Seconds that a replica works on the uncached tokens of a prompt."""
        return self.prefill_base + self.prefill_token * tokens

    def decode(self, running: float) -> float:
        """Seconds between two tokens of an answer, beside which ``running - 1`` others run."""
        return self.decode_base + self.decode_running * running


PRESUMED = Pace(prefill_base=0.02, prefill_token=1e-4, decode_base=0.02, decode_running=1e-3)
"""Of a replica of which nothing is known, among replicas of which nothing is known."""


@dataclass(slots=True)
class Speed:
    """What has been measured of one replica."""

    prefill: LineFit = field(default_factory=LineFit)
    """Seconds from when a prompt's turn came to its first token, by uncached tokens."""
    decode: LineFit = field(default_factory=LineFit)
    """Seconds per token after the first, by how many answers ran."""
    output_tokens: float = 128.0
    """Mean of the answers, the newest counting most."""
    cached_trust: float = 1.0
    """Cached tokens that answers told, over those that were expected."""

    _own: Pace | None = None
    """Its own lines, while all of them are and nothing new was measured."""

    @property
    def known(self) -> bool:
        """Whether enough has been measured to say how fast it is."""
        return self.prefill.points >= _ENOUGH

    def pace(self, others: Pace) -> Pace:
        """Its own lines where enough has been measured, else those of ``others``."""
        if self._own is not None:
            return self._own
        prefill, decode = self.prefill, self.decode
        own_prefill, own_decode = prefill.points >= _ENOUGH, decode.points >= _ENOUGH
        found = Pace(
            prefill_base=prefill.intercept if own_prefill else others.prefill_base,
            prefill_token=prefill.slope if own_prefill else others.prefill_token,
            decode_base=decode.intercept if own_decode else others.decode_base,
            decode_running=decode.slope if own_decode else others.decode_running,
        )
        self._own = found if own_prefill and own_decode else None
        return found

    def saw_prompt(self, tokens: int, seconds: float) -> None:
        """A first token has come, ``seconds`` after the prompt's turn."""
        self.prefill.add(float(tokens), max(0.0, seconds))
        self._own = None

    def saw_answer(self, tokens: int, seconds: float, running: float) -> None:
        """An answer of ``tokens`` has ended, ``seconds`` after its first."""
        self.output_tokens += 0.05 * (tokens - self.output_tokens)
        if tokens > 1:
            self.decode.add(running, max(0.0, seconds) / (tokens - 1))
            self._own = None

    def saw_cached(self, expected: int, told: int) -> None:
        """An answer's usage says how much of its prompt was found in the replica's cache."""
        if expected > 0:
            self.cached_trust += 0.1 * (min(1.0, told / expected) - self.cached_trust)


def paces(speeds: Sequence[Speed]) -> list[Pace]:
    """The pace of each of several replicas. If nothing speaks against it they are alike: those whose measured seconds
    for a usual prompt and a usual token lie near the median have the mean pace of all that do, as what is measured of
    one alone differs by chance, and one that only seems faster would get everything. One that is clearly slower or
    faster has its own, and one that is new the median's."""
    measured = [speed.pace(PRESUMED) for speed in speeds if speed.known]
    if not measured:
        return [PRESUMED] * len(speeds)
    prompts = sorted([pace.usual_prompt for pace in measured])
    tokens = sorted([pace.usual_token for pace in measured])
    prompt, token = prompts[(len(prompts) - 1) // 2], tokens[(len(tokens) - 1) // 2]
    most_prompt, least_prompt = prompt * _ALIKE, prompt / _ALIKE
    most_token, least_token = token * _ALIKE, token / _ALIKE

    def is_usual(pace: Pace) -> bool:
        return least_prompt <= pace.usual_prompt <= most_prompt and least_token <= pace.usual_token <= most_token

    usual = [pace for pace in measured if is_usual(pace)] or measured
    middle = _mean(usual)
    return [middle if not speed.known or is_usual(own := speed.pace(middle)) else own for speed in speeds]


def _mean(measured: Sequence[Pace]) -> Pace:
    count = len(measured)
    return Pace(
        prefill_base=sum(pace.prefill_base for pace in measured) / count,
        prefill_token=sum(pace.prefill_token for pace in measured) / count,
        decode_base=sum(pace.decode_base for pace in measured) / count,
        decode_running=sum(pace.decode_running for pace in measured) / count,
    )

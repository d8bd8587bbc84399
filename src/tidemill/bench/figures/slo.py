"""Service-level objectives: ``ttft:p99<2s; itl:p95<150ms; e2e:mean<10s``.

    expression = term { ";" term } [ ";" ]
    term       = metric ":" statistic ( "<" | "<=" ) number unit
    metric     = ttft | itl | gap | tpot | e2e | queue
    statistic  = mean | min | max | median | p and a number above 0 and below 100, as in p99.9
    unit       = us | ms | s | min

A request is within the objectives if the statistic of its own samples is within the bound of every term (of a single
sample, every statistic is that sample). A run is within a term if the statistic of the pooled samples of all requests
is. What failed is within nothing: its missing samples are infinite.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NoReturn, cast

from tidemill.bench.figures.latencies import Metric, samples, samples_expected
from tidemill.bench.figures.percentiles import nearest_rank
from tidemill.bench.load.record import RequestRecord
from tidemill.core.errors import ConfigError

__all__ = ["Slo", "Term", "parse_slo"]

_UNITS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}
_METRICS: Final = ("ttft", "itl", "gap", "tpot", "e2e", "queue")
_STATISTICS: Final = ("mean", "min", "max", "median")
_NUMBER: Final = re.compile(r"\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?")
_WORD: Final = re.compile(r"[a-zA-Z_][a-zA-Z_0-9.]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One objective."""

    text: str
    """As it was written."""
    metric: Metric
    statistic: str
    """mean, min, max or pNN; the median is p50."""
    bound: float
    """Seconds."""
    inclusive: bool = False

    def value(self, values: Sequence[float]) -> float | None:
        """The statistic of samples; None of none."""
        if not values:
            return None
        match self.statistic:
            case "mean":
                return sum(values) / len(values)
            case "min":
                return min(values)
            case "max":
                return max(values)
            case percentile:
                return nearest_rank(sorted(values), float(percentile[1:]))

    def met(self, record: RequestRecord) -> bool:
        """True if the request's own samples are within the bound. One without samples (a single token has no next one)
        is, except of a time that only the server knows and did not tell."""
        value = self.value(samples(record, self.metric))
        return self.metric != "queue" if value is None else self.holds(value)

    def holds(self, value: float) -> bool:
        """True if a value is within the bound."""
        return value <= self.bound if self.inclusive else value < self.bound

    def pooled(self, records: Sequence[RequestRecord]) -> float | None:
        """The statistic over all requests; missing samples of failed ones are infinite."""
        return self.value([value for record in records for value in self._samples(record)])

    def _samples(self, record: RequestRecord) -> Sequence[float]:
        if record.failed:
            return [math.inf] * samples_expected(record, self.metric)
        return samples(record, self.metric)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Objectives that hold together."""

    text: str
    terms: tuple[Term, ...]

    def met(self, record: RequestRecord) -> bool:
        """True if a request was within every term. A failed one never is, and no term is met by an ok answer that
        brought no token, unless no token was asked for."""
        if record.failed or (record.outcome == "ok" and not record.arrived and record.asked_tokens > 0):
            return False
        return all(term.met(record) for term in self.terms)


def parse_slo(text: str) -> Slo:
    """Read an expression. Raises ConfigError with the position of what cannot be read."""
    reader = _Reader(text)
    terms = [reader.term()]
    while reader.take(";"):
        if reader.at_end:
            break
        terms.append(reader.term())
    if not reader.at_end:
        reader.refuse("expected ; or the end")
    return Slo(text=text, terms=tuple(terms))


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._skip()

    @property
    def at_end(self) -> bool:
        return self._at >= len(self._text)

    def term(self) -> Term:
        begin = self._at
        metric = self._word(_METRICS, "a metric")
        self._need(":", f"expected : after {metric}")
        statistic = self._statistic()
        inclusive = self.take("<=")
        if not inclusive:
            self._need("<", "expected < or <=")
        number = self._number()
        unit = self._word(tuple(_UNITS), "a unit")
        return Term(
            text=self._text[begin : self._at].strip(),
            metric=cast(Metric, metric),
            statistic="p50" if statistic == "median" else statistic,
            bound=number * _UNITS[unit],
            inclusive=inclusive,
        )

    def take(self, sign: str) -> bool:
        if not self._text.startswith(sign, self._at):
            return False
        self._at += len(sign)
        self._skip()
        return True

    def refuse(self, what: str, at: int | None = None) -> NoReturn:
        at = self._at if at is None else at
        found = repr(self._text[at : at + 12]) if at < len(self._text) else "the end"
        raise ConfigError(f"slo: {what}, found {found} at position {at + 1} of {self._text!r}", param="slo")

    def _statistic(self) -> str:
        begin, word = self._at, self._match(_WORD)
        percent = re.fullmatch(r"p(\d+(?:\.\d+)?)", word)
        if word not in _STATISTICS and not (percent and 0 < float(percent[1]) < 100):
            self.refuse(f"expected a statistic ({', '.join(_STATISTICS)}, p99 or the like)", begin)
        return word

    def _number(self) -> float:
        begin, found = self._at, self._match(_NUMBER)
        if not found or not 0 < float(found) < math.inf:
            self.refuse("expected a number above 0", begin)
        return float(found)

    def _word(self, known: Sequence[str], what: str) -> str:
        begin, word = self._at, self._match(_WORD)
        if word not in known:
            self.refuse(f"expected {what} ({', '.join(known)})", begin)
        return word

    def _need(self, sign: str, what: str) -> None:
        if not self.take(sign):
            self.refuse(what)

    def _match(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._at)
        if found is None:
            return ""
        self._at = found.end()
        self._skip()
        return found[0]

    def _skip(self) -> None:
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1

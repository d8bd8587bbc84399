"""The times of one request, as a user felt them.

ttft   from due to the first generated token of any channel (reasoning and tool arguments count; role, empty, keep-alive
       and usage events do not)
itl    between tokens, one sample for each token after the first. Tokens of one chunk came together, and nobody saw
       when each was made: a chunk of n tokens, t after the one before, is n samples of t / n; what the first chunk has
       beyond its first token is samples of 0. Their mean is (last - first) / (tokens - 1) however the tokens were cut.
gap    between chunks: how long a reader saw nothing new. Chunks of many tokens cannot make it look better.
tpot   (last - first) / (tokens - 1), one sample for each request with two tokens at least
e2e    from due to the end of the answer
queue  in the server's queue, where it tells
late   from due to sent: what the client added, which the others contain
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Final, Literal

from tidemill.bench.load.record import RequestRecord

__all__ = ["METRICS", "Metric", "samples", "samples_expected"]

Metric = Literal["ttft", "itl", "gap", "tpot", "e2e", "queue", "late"]


def samples(record: RequestRecord, metric: Metric) -> Sequence[float]:
    """Seconds, of a request that came to an end or was hung up on purpose."""
    return METRICS[metric](record)


def samples_expected(record: RequestRecord, metric: Metric) -> int:
    """How many samples a request should have had: those of a failed one are missing, and count as infinite."""
    return max(1, record.asked_tokens - 1) if metric in ("itl", "gap") else 1


def _ttft(record: RequestRecord) -> Sequence[float]:
    return () if record.first is None else (record.first - record.due,)


def _itl(record: RequestRecord) -> Sequence[float]:
    if not record.arrived:
        return ()
    found = [0.0] * (record.arrived[0].tokens - 1)
    for before, after in pairwise(record.arrived):
        found += [(after.at - before.at) / after.tokens] * after.tokens
    return found


def _gap(record: RequestRecord) -> Sequence[float]:
    return [after.at - before.at for before, after in pairwise(record.arrived)]


def _tpot(record: RequestRecord) -> Sequence[float]:
    tokens = record.arrived_tokens
    if record.first is None or record.last is None or tokens < 2:
        return ()
    return ((record.last - record.first) / (tokens - 1),)


def _e2e(record: RequestRecord) -> Sequence[float]:
    return () if record.ended is None or record.outcome == "cancelled" else (record.ended - record.due,)


def _queue(record: RequestRecord) -> Sequence[float]:
    return () if record.queued is None else (record.queued,)


def _late(record: RequestRecord) -> Sequence[float]:
    return () if record.sent is None else (record.sent - record.due,)


METRICS: Final[Mapping[Metric, Callable[[RequestRecord], Sequence[float]]]] = {
    "ttft": _ttft,
    "itl": _itl,
    "gap": _gap,
    "tpot": _tpot,
    "e2e": _e2e,
    "queue": _queue,
    "late": _late,
}

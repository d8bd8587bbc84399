"""From a trace to its model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from tidemill.bench.traces.arrivals import Arrivals
from tidemill.bench.traces.beginnings import common_beginnings
from tidemill.bench.traces.fit_arrivals import fit_arrivals
from tidemill.bench.traces.joint import fit_joint
from tidemill.bench.traces.model import VERSION, TenantShare, TraceModel
from tidemill.bench.traces.row import TraceRow
from tidemill.bench.traces.sharing import Sharing, fit_sharing
from tidemill.bench.traces.talks import fit_talks, sessions_of
from tidemill.bench.traces.trace import Trace
from tidemill.core.errors import SetupError

__all__ = ["fit_model"]

_FEWEST = 10
_MOST_TENANTS = 64


def fit_model(trace: Trace, *, source: str | None = None) -> TraceModel:
    """Fit a trace of at least ten requests. ``source``: what the model says it was made from."""
    if len(trace.rows) < _FEWEST:
        raise SetupError(f"{trace.name}: {len(trace.rows)} requests are too few to fit; {_FEWEST} are the fewest")
    sessions = sessions_of(trace.rows)
    talks = fit_talks(sessions)
    firsts = [session[0] for session in sessions] if talks else list(trace.rows)
    sharing: Sharing | None = None
    begun: list[int | None] = [0] * len(firsts)
    if any(row.prefix for row in firsts):
        sharing, begun = _beginnings_only(firsts) if talks else fit_sharing(firsts)
    fresh = [(row, tokens) for row, tokens in zip(firsts, begun, strict=True) if tokens is not None]
    arrivals, notes = _arrivals(firsts)
    return TraceModel(
        version=VERSION,
        source=source or trace.name,
        requests=len(trace.rows),
        arrivals=arrivals,
        lengths=fit_joint(
            [row.prompt_tokens - tokens for row, tokens in fresh], [row.output_tokens for row, _ in fresh]
        ),
        talks=talks,
        sharing=sharing,
        tenants=_tenants(trace.rows),
        notes=notes,
    )


def _beginnings_only(firsts: Sequence[TraceRow]) -> tuple[Sharing | None, list[int | None]]:
    """First turns share common beginnings, of so many tokens each; what later turns share, their sessions say."""
    common, places = common_beginnings(firsts)
    sharing = Sharing(block=16, beginnings=common.listed) if common.listed else None
    return sharing, [common.tokens(place) for place in places]


def _arrivals(firsts: Sequence[TraceRow]) -> tuple[Arrivals, tuple[str, ...]]:
    times = np.array([row.at for row in firsts])
    if len(times) < 3 or times[0] == times[-1]:
        note = "the trace has no arrivals: Poisson arrivals at one a second are presumed"
        return Arrivals(window=float(len(firsts)), rates=(1.0,), shape=1.0), (note,)
    return fit_arrivals(times), ()


def _tenants(rows: Sequence[TraceRow]) -> tuple[TenantShare, ...]:
    """Tenants and priorities by their share of the requests, the most frequent first; empty for the default one."""
    counts = Counter((row.tenant, row.priority) for row in rows)
    if set(counts) == {(None, 0)}:
        return ()
    return tuple(
        TenantShare(tenant=tenant, priority=priority, share=round(count / len(rows), 6))
        for (tenant, priority), count in counts.most_common(_MOST_TENANTS)
    )

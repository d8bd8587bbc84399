"""The figures of a run, as plain values for JSON. Text and pages are made from these, so they show the same.

Times are milliseconds in names that end in ``_ms``. Failures are in no latency and improve no figure: they are counted,
they miss every objective, their tokens are no throughput.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from tidemill.bench.figures.cost import PriceModel
from tidemill.bench.figures.fairness import jain, speeds
from tidemill.bench.figures.latencies import METRICS, Metric, samples
from tidemill.bench.figures.percentiles import Pool, is_thin
from tidemill.bench.figures.slo import Slo, Term
from tidemill.bench.load.record import RequestRecord
from tidemill.bench.load.run import Run

__all__ = ["PERCENTILES", "distribution", "figures"]

PERCENTILES: Final = (50, 90, 95, 99)
_MEASURED: Final[tuple[Metric, ...]] = ("ttft", "itl", "gap", "tpot", "e2e", "queue")
assert set(_MEASURED) < set(METRICS)


def figures(
    run: Run,
    *,
    slo: Slo | None = None,
    price: PriceModel | None = None,
    joules: float | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Everything that is known of a run. ``seed``: of the bootstrap intervals. ``joules``: as measured."""
    records = run.records
    whole = [record for record in records if not record.failed]
    values: dict[str, Any] = {
        "valid": run.valid,
        "complaints": list(run.complaints),
        "seconds": _round(run.seconds),
        "requests": _counts(records),
        "client": _client(run, seed),
        "tokens": _tokens(records, whole),
        "rates": _rates(run, whole),
    }
    for metric in _MEASURED:
        values[f"{metric}_ms"] = distribution([samples(record, metric) for record in whole], seed=seed)
    values["slo"] = None if slo is None else _slo(run, slo)
    values["tenants"] = _tenants(records, slo) if any(record.tenant for record in records) else None
    values["cost"] = _cost(run, whole, price or PriceModel(), joules)
    return values


def distribution(per_request: Sequence[Sequence[float]], *, seed: int) -> dict[str, Any] | None:
    """Milliseconds of samples in seconds, pooled over requests; None if there is none.

    ``thin``: percentiles for which there are too few samples: they are the largest one.
    """
    pool = Pool.of(per_request)
    if not len(pool):
        return None
    values: dict[str, Any] = {"samples": len(pool), "requests": sum(1 for own in per_request if len(own))}
    values["mean"] = _ms(pool.mean())
    values["min"], values["max"] = _ms(float(pool.values[0])), _ms(float(pool.values[-1]))
    for percent, (low, high) in zip(PERCENTILES, pool.intervals(PERCENTILES, seed=seed), strict=True):
        values[f"p{percent}"] = _ms(pool.percentile(percent))
        values[f"p{percent}_interval"] = [_ms(low), _ms(high)]
    values["thin"] = [f"p{percent}" for percent in PERCENTILES if is_thin(values["requests"], percent)]
    return values


def _counts(records: Sequence[RequestRecord]) -> dict[str, Any]:
    found: Counter[str] = Counter(record.outcome for record in records)
    names = ("ok", "cancelled", "error", "refused", "timeout", "disconnected")
    errors = Counter(record.error for record in records if record.failed and record.error)
    return {
        "total": len(records),
        **{name: found.get(name, 0) for name in names},
        "failed": sum(record.failed for record in records),
        "errors": [{"message": message, "requests": count} for message, count in errors.most_common(5)],
    }


def _client(run: Run, seed: int) -> dict[str, Any]:
    client = run.client
    return {
        "loop": "open" if run.open_loop else "closed",
        "lateness_ms": distribution([[late] for late in client.lateness], seed=seed),
        "cpu_share": _round(client.cpu_share),
        "intended_rate": _round(client.intended_rate),
        "achieved_rate": _round(client.achieved_rate),
    }


def _tokens(records: Sequence[RequestRecord], whole: Sequence[RequestRecord]) -> dict[str, Any]:
    told = [record for record in whole if record.cached_tokens is not None]
    asked = sum(record.prompt_tokens for record in told)
    cached = sum(record.cached_tokens or 0 for record in told)
    counted = Counter(record.counted for record in whole if record.arrived)
    return {
        "prompt": sum(record.prompt_tokens for record in whole),
        "prompt_planned": sum(record.planned_tokens for record in whole),
        "prompts_of_planned_length": sum(record.prompt_tokens == record.planned_tokens for record in whole),
        "output": sum(record.output_tokens for record in whole),
        "output_asked": sum(record.asked_tokens for record in whole),
        "output_of_failed": sum(record.output_tokens for record in records if record.failed),
        "chunks": sum(record.chunks for record in whole),
        "counted": {name: counted.get(name, 0) for name in ("each", "spread", "chunks")},
        "cached": cached if told else None,
        "cached_share": _round(cached / asked) if asked else None,
    }


def _rates(run: Run, whole: Sequence[RequestRecord]) -> dict[str, Any]:
    ok = sum(record.outcome == "ok" for record in whole)
    return {
        "requests_per_second": _per(ok, run.seconds),
        "output_tokens_per_second": _per(sum(record.output_tokens for record in whole), run.seconds),
        "prompt_tokens_per_second": _per(sum(record.prompt_tokens for record in whole), run.seconds),
    }


def _slo(run: Run, slo: Slo) -> dict[str, Any]:
    met = [slo.met(record) for record in run.records]
    return {
        "expression": slo.text,
        "met": sum(met),
        "of": len(met),
        "share": _round(sum(met) / len(met)) if met else None,
        "goodput_requests_per_second": _per(sum(met), run.seconds),
        "goodput_tokens_per_second": _per(
            sum(record.output_tokens for record, good in zip(run.records, met, strict=True) if good), run.seconds
        ),
        "terms": [_term(term, run.records) for term in slo.terms],
    }


def _term(term: Term, records: Sequence[RequestRecord]) -> dict[str, Any]:
    """A term over all requests. ``value_ms`` is None where it is infinite, or where nothing was measured; then it is
    not met, for an objective that nobody can see has not been reached."""
    value = term.pooled(records)
    return {
        "term": term.text,
        "value_ms": _ms(value),
        "met": value is not None and term.holds(value),
        "measured": value is not None,
    }


def _tenants(records: Sequence[RequestRecord], slo: Slo | None) -> dict[str, Any]:
    speed = speeds(records)
    rows = {}
    for tenant in sorted(speed):
        own = [record for record in records if (record.tenant or "") == tenant]
        first = Pool.of([samples(record, "ttft") for record in own if not record.failed])
        rows[tenant] = {
            "requests": len(own),
            "failed": sum(record.failed for record in own),
            "output_tokens": sum(record.output_tokens for record in own if not record.failed),
            "ttft_p50_ms": _ms(first.percentile(50)),
            "ttft_p99_ms": _ms(first.percentile(99)),
            "tokens_per_second_waited": _round(speed[tenant]),
            "slo_share": None if slo is None else _round(sum(map(slo.met, own)) / len(own)),
        }
    return {"fairness": _round(jain(list(speed.values()))), "rows": rows}


def _cost(run: Run, whole: Sequence[RequestRecord], price: PriceModel, measured: float | None) -> dict[str, Any] | None:
    joules = price.joules(run.seconds, measured)
    if joules is None and not price.given:
        return None
    output = sum(record.output_tokens for record in whole)
    total = output + sum(record.prompt_tokens for record in whole)
    money = price.cost(run.seconds, measured)
    return {
        "joules": _round(joules),
        "joules_measured": measured is not None,
        "joules_per_output_token": _round(joules / output) if joules is not None and output else None,
        "cost": _round(money),
        "cost_per_million_output_tokens": _round(1e6 * money / output) if output and price.given else None,
        "cost_per_million_tokens": _round(1e6 * money / total) if total and price.given else None,
    }


def _per(amount: float, seconds: float) -> float | None:
    return _round(amount / seconds) if seconds > 0 else None


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None or not math.isfinite(seconds) else round(1e3 * seconds, 3)


def _round(value: float | None) -> float | None:
    """Six significant digits."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")

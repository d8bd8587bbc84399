"""Fairness between tenants: Jain's index (Jain, Chiu and Hawe, 1984)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidemill.bench.load.record import RequestRecord

__all__ = ["jain", "speeds"]


def jain(values: Sequence[float]) -> float | None:
    """1 if all have the same, 1 / n if one has everything; None of no values, or if nobody has anything."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares > 0 else None


def speeds(records: Sequence[RequestRecord]) -> Mapping[str, float]:
    """Of each tenant, output tokens per second that its requests were waited for, queueing included. Failed ones
    bring no tokens, and the time until they failed counts."""
    tokens: dict[str, float] = {}
    seconds: dict[str, float] = {}
    for record in records:
        tenant = record.tenant or ""
        tokens[tenant] = tokens.get(tenant, 0.0) + (0 if record.failed else record.output_tokens)
        seconds[tenant] = seconds.get(tenant, 0.0) + max(0.0, (record.ended or record.due) - record.due)
    return {tenant: tokens[tenant] / seconds[tenant] if seconds[tenant] > 0 else 0.0 for tenant in tokens}

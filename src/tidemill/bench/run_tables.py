"""The figures of a run as text; made from the values that go into the JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tidemill.bench.tables import table

__all__ = ["run_lines"]

_LATENCIES: Final = {
    "ttft_ms": "first token",
    "itl_ms": "between tokens",
    "gap_ms": "between chunks",
    "tpot_ms": "per output token",
    "e2e_ms": "whole answer",
    "queue_ms": "in the queue",
}


def run_lines(values: Mapping[str, Any]) -> list[str]:
    """The summary of a run, line by line."""
    parts = [_head, _latencies, _rates, _slo, _tenants, _cost, _complaints]
    return [line for part in parts for line in part(values)]


def _head(values: Mapping[str, Any]) -> Iterator[str]:
    counts = values["requests"]
    kinds = [f"{counts[name]} {name}" for name in ("ok", "cancelled", "error", "refused", "timeout", "disconnected")]
    shown = [kind for kind in kinds if not kind.startswith("0 ")]
    yield f"{counts['total']} requests in {values['seconds']:.2f} s: {', '.join(shown) or 'none'}"
    for error in counts["errors"]:
        yield f"  {error['requests']} x {error['message']}"


def _latencies(values: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    rows = []
    thin: set[str] = set()
    for name, words in _LATENCIES.items():
        found = values[name]
        if found is None:
            continue
        thin.update(found["thin"])
        cells = [f"{found[column]:.1f}" for column in ("mean", "p50", "p90", "p95", "p99", "max")]
        low, high = found["p95_interval"]
        counted = f"{found['requests']} of {values['requests']['total']}"
        rows.append([words, *cells, f"{low:.1f}..{high:.1f}", str(found["samples"]), counted])
    if not rows:
        yield "no answer brought a token"
        return
    head = ["ms", "mean", "p50", "p90", "p95", "p99", "max", "p95, 95 % sure", "samples", "requests"]
    yield table(head, rows)
    if thin:
        yield f"too few requests for {', '.join(sorted(thin))}: no sample lies beyond"


def _rates(values: Mapping[str, Any]) -> Iterator[str]:
    rates, tokens, client = values["rates"], values["tokens"], values["client"]
    yield ""
    yield (
        f"throughput: {_shown(rates['requests_per_second'])} requests/s, "
        f"{_shown(rates['output_tokens_per_second'])} output tokens/s, "
        f"{_shown(rates['prompt_tokens_per_second'])} prompt tokens/s"
    )
    asked = f"{tokens['output']} out of {tokens['output_asked']} asked"
    yield f"tokens: {tokens['prompt']} in ({_planned(values)}), {asked}"
    counted = {name: count for name, count in tokens["counted"].items() if count}
    if set(counted) - {"each"}:
        words = {"each": "one by one", "spread": "spread over chunks", "chunks": "unknown, each chunk taken for one"}
        yield "tokens of chunks: " + ", ".join(f"{words[name]} in {count} answers" for name, count in counted.items())
    if tokens["cached_share"] is not None:
        yield f"found in the server's cache: {tokens['cached_share']:.1%} of prompt tokens"
    late = client["lateness_ms"]
    sent = f"sent {late['p99']:.2f} ms late at p99" if late else "closed loop: it has no schedule to be late for"
    achieved = client["achieved_rate"]
    kept = f", {_shown(achieved)} of {_shown(client['intended_rate'])} requests/s" if achieved else ""
    yield f"client: {sent}{kept}; {_shown(client['cpu_share'])} of a core"


def _planned(values: Mapping[str, Any]) -> str:
    tokens, whole = values["tokens"], values["requests"]["ok"] + values["requests"]["cancelled"]
    if tokens["prompts_of_planned_length"] == whole:
        return "as planned"
    return f"{tokens['prompt_planned']} planned; {tokens['prompts_of_planned_length']} of {whole} prompts as planned"


def _slo(values: Mapping[str, Any]) -> Iterator[str]:
    slo = values["slo"]
    if slo is None:
        return
    yield (
        f"within {slo['expression']}: {slo['met']} of {slo['of']} requests ({slo['share'] or 0:.1%}); goodput "
        f"{_shown(slo['goodput_requests_per_second'])} requests/s, {_shown(slo['goodput_tokens_per_second'])} tokens/s"
    )
    for term in slo["terms"]:
        value = f"{term['value_ms']:.1f} ms" if term["value_ms"] is not None else "infinite, for requests that failed"
        shown = value if term["measured"] else "not measured"
        yield f"  {'met   ' if term['met'] else 'missed'}  {term['term']}: {shown}"


def _tenants(values: Mapping[str, Any]) -> Iterator[str]:
    tenants = values["tenants"]
    if tenants is None:
        return
    rows = [
        [
            name or "(none)",
            str(row["requests"]),
            str(row["failed"]),
            _shown(row["ttft_p50_ms"]),
            _shown(row["ttft_p99_ms"]),
            _shown(row["tokens_per_second_waited"]),
            "-" if row["slo_share"] is None else f"{row['slo_share']:.1%}",
        ]
        for name, row in tenants["rows"].items()
    ]
    yield ""
    yield table(["tenant", "requests", "failed", "ttft p50", "ttft p99", "tok/s waited", "in SLO"], rows)
    yield f"fairness (Jain, of tokens per second waited): {_shown(tenants['fairness'])}"


def _cost(values: Mapping[str, Any]) -> Iterator[str]:
    cost = values["cost"]
    if cost is None:
        return
    if cost["joules"] is not None:
        how = "measured" if cost["joules_measured"] else "by the watts given"
        each = _shown(cost["joules_per_output_token"])
        yield f"energy: {_shown(cost['joules'])} J ({how}), {each} J per output token"
    if cost["cost_per_million_output_tokens"] is not None:
        yield (
            f"cost: {_shown(cost['cost_per_million_output_tokens'])} per million output tokens, "
            f"{_shown(cost['cost_per_million_tokens'])} per million of both kinds"
        )


def _complaints(values: Mapping[str, Any]) -> Iterator[str]:
    for complaint in values["complaints"]:
        yield f"THIS RUN DOES NOT COUNT: {complaint}"


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"

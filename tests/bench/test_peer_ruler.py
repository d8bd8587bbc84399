"""Figures of GuideLLM's results, for the comparison of rulers."""

from __future__ import annotations

import pytest

from benchmarks.peer_ruler import figures_of


def request(begin: float, end: float, tokens: int, itl: float) -> dict[str, float]:
    return {
        "request_start_time": begin,
        "request_end_time": end,
        "output_tokens": tokens,
        "inter_token_latency_ms": itl,
    }


def test_figures_of_guidellm() -> None:
    requests = [request(100.0, 102.0, 30, 10.0), request(101.0, 105.0, 20, 20.0)]
    metrics = {
        "request_totals": {"successful": 2, "errored": 0, "incomplete": 0, "total": 2},
        "time_to_first_token_ms": {"successful": {"mean": 150.0, "percentiles": {"p50": 140.0}}},
        "request_latency": {"successful": {"mean": 3.0}},
    }
    found = figures_of({"metrics": metrics, "requests": {"successful": requests}})
    assert found == {
        "ttft_mean_ms": 150.0,
        "ttft_p50_ms": 140.0,
        "tpot_mean_ms": 15.0,  # a mean of requests, not of tokens
        "e2e_mean_ms": 3000.0,
        "tokens_per_second": 10.0,
        "output_tokens": 50,
    }
    with pytest.raises(SystemExit, match="errored"):
        figures_of({"metrics": metrics, "requests": {"successful": requests[:1]}})

"""What a server says of itself, read from /metrics (Tidemill's or vLLM's), and figures between two readings."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any, Final
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from tidemill.core.clock import Clock, SystemClock
from tidemill.core.errors import ConfigError, TidemillError

__all__ = ["Distribution", "Reading", "Server", "figures", "parse"]

_SECONDS: Final = 5.0
_MOST_BYTES: Final = 8 * 2**20
_TIDEMILL: Final = {
    "running": ("tidemill_engine_running",),
    "waiting": ("tidemill_engine_waiting",),
    "generated": ("tidemill_engine_generation_tokens_total",),
    "prompt": ("tidemill_engine_prompt_tokens_total",),
    "asked": ("tidemill_engine_prefix_asked_tokens_total",),
    "hits": ("tidemill_engine_prefix_hit_tokens_total",),
    "blocks": ("tidemill_engine_kv_blocks",),
    "held": ("tidemill_engine_kv_blocks_held",),
    "cached": ("tidemill_engine_kv_blocks_cached",),
    "preemptions": ("tidemill_engine_preemptions_total",),
    "restarts": ("tidemill_engine_restarts_total",),
    "ttft": ("tidemill_time_to_first_token_seconds",),
    "itl": ("tidemill_time_per_output_token_seconds",),
}
_VLLM: Final = {
    "running": ("vllm:num_requests_running",),
    "waiting": ("vllm:num_requests_waiting",),
    "generated": ("vllm:generation_tokens_total",),
    "prompt": ("vllm:prompt_tokens_total",),
    "asked": ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    "hits": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
    "preemptions": ("vllm:num_preemptions_total",),
    "ttft": ("vllm:time_to_first_token_seconds",),
    "itl": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
}
"""The names of each figure, newest first: some changed between versions."""
_VLLM_USAGE: Final = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Of values in seconds: ``counts[i]`` were at most ``bounds[i]``, the last of which is infinite."""

    bounds: tuple[float, ...]
    counts: tuple[float, ...]

    def since(self, before: Distribution | None) -> Distribution:
        """What came between; everything where ``before`` has other bounds."""
        if before is None or before.bounds != self.bounds:
            return self
        return Distribution(
            bounds=self.bounds, counts=tuple(a - b for a, b in zip(self.counts, before.counts, strict=True))
        )

    def quantile(self, q: float) -> float | None:
        """Linear within a bucket, as Prometheus' histogram_quantile; None of nothing."""
        if not self.counts or self.counts[-1] <= 0:
            return None
        rank, low, under = q * self.counts[-1], 0.0, 0.0
        for bound, count in zip(self.bounds, self.counts, strict=True):
            if count >= rank and bound != float("inf"):
                return low + (bound - low) * (rank - under) / max(count - under, 1e-9)
            if bound != float("inf"):
                low, under = bound, count
        return low


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One look at a server. A figure that it does not export is not in ``values``."""

    time: float
    source: str
    """``tidemill`` or ``vllm``."""
    model: str
    problem: str | None = None
    """Why it takes no work, if it does not."""
    values: dict[str, float] = field(default_factory=dict)
    ttft: Distribution | None = None
    itl: Distribution | None = None


def parse(page: str, *, time: float, problem: str | None = None) -> Reading:
    """A reading of a metrics page. Raises TidemillError where it is neither Tidemill's nor vLLM's."""
    samples: dict[str, list[tuple[dict[str, str], float]]] = {}
    try:
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                samples.setdefault(sample.name, []).append((sample.labels, sample.value))
    except (ValueError, KeyError, IndexError) as error:
        raise TidemillError(f"the server's /metrics is not a page for Prometheus: {error}") from error
    source = next((s for s, n in (("tidemill", _TIDEMILL), ("vllm", _VLLM)) if n["running"][0] in samples), None)
    if source is None:
        raise TidemillError("the server's /metrics has neither Tidemill's figures nor vLLM's")
    names = _TIDEMILL if source == "tidemill" else _VLLM
    values = {
        figure: sum(value for _, value in samples[found])
        for figure, known in names.items()
        if (found := next((name for name in known if name in samples), None)) is not None
    }
    info = next((labels for labels, _ in samples.get("vllm:cache_config_info", ())), {})
    if info.get("block_size", "").isdigit():
        values["block_size"] = int(info["block_size"])
    if source == "vllm":
        _add_usage(values, samples, info)
    model = next(
        (labels["model_name"] for labels, _ in samples.get(_VLLM["running"][0], ()) if "model_name" in labels), ""
    )
    return Reading(
        time=time,
        source=source,
        model=model,
        problem=problem,
        values=values,
        ttft=_distribution(samples, names["ttft"]),
        itl=_distribution(samples, names["itl"]),
    )


def _add_usage(
    values: dict[str, float], samples: dict[str, list[tuple[dict[str, str], float]]], info: dict[str, str]
) -> None:
    """vLLM says which part of how many blocks is held; the mean, if there are several engines."""
    usage = next((samples[name] for name in _VLLM_USAGE if name in samples), [])
    if usage:
        values["usage"] = sum(value for _, value in usage) / len(usage)
    if info.get("num_gpu_blocks", "").isdigit():
        values["blocks"] = int(info["num_gpu_blocks"])
        values["held"] = round(values.get("usage", 0.0) * values["blocks"])


def _distribution(
    samples: dict[str, list[tuple[dict[str, str], float]]], names: tuple[str, ...]
) -> Distribution | None:
    for name in names:
        counts: dict[float, float] = {}
        for labels, value in samples.get(f"{name}_bucket", ()):
            bound = float(labels["le"])
            counts[bound] = counts.get(bound, 0.0) + value
        if counts:
            bounds = tuple(sorted(counts))
            return Distribution(bounds=bounds, counts=tuple(counts[bound] for bound in bounds))
    return None


def figures(before: Reading, now: Reading) -> dict[str, Any]:
    """What to show: the state of ``now``, and rates and quantiles since ``before``; None where there is nothing to say.
    Quantiles are of all requests so far where none came between."""
    fresh = now.values.get("generated", 0.0) >= before.values.get("generated", 0.0)  # else it was started again
    passed = now.time - before.time

    def rate(name: str) -> float | None:
        if name not in now.values or name not in before.values or passed <= 0 or not fresh:
            return None
        return (now.values[name] - before.values[name]) / passed

    def count(name: str) -> int | None:
        return round(now.values[name]) if name in now.values else None

    def quantiles(all_of: Distribution | None, until: Distribution | None) -> dict[str, float | None]:
        if all_of is None:
            return {"p50": None, "p95": None}
        recent = all_of.since(until if fresh else None)
        shown = recent if recent.counts[-1] > 0 else all_of
        return {"p50": shown.quantile(0.5), "p95": shown.quantile(0.95)}

    values = now.values
    asked, blocks = values.get("asked", 0.0), values.get("blocks", 0.0)
    usage = values.get("usage", values.get("held", 0.0) / blocks if blocks else None)
    return {
        "source": now.source,
        "model": now.model,
        "ready": now.problem is None,
        "problem": now.problem,
        "running": count("running"),
        "waiting": count("waiting"),
        "tokens_per_second": rate("generated"),
        "prompt_tokens_per_second": rate("prompt"),
        "time_to_first_token": quantiles(now.ttft, before.ttft),
        "time_per_output_token": quantiles(now.itl, before.itl),
        "prefix_hit_share": values.get("hits", 0.0) / asked if asked else None,
        "kv": {"usage": usage} | {name: count(name) for name in ("blocks", "held", "cached", "block_size")},
        "preemptions": count("preemptions"),
        "restarts": count("restarts"),
    }


class Server:
    """A server that can be read. Follows no redirect and uses no proxy: a key goes to nobody else."""

    def __init__(self, url: str, *, api_key: str | None = None, clock: Clock | None = None) -> None:
        """Raises ConfigError for what is no HTTP URL. A trailing /v1 is left out."""
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise ConfigError(f"url must be like http://127.0.0.1:8000, not {url!r}", param="url")
        self.url = url.rstrip("/").removesuffix("/v1")
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._clock = clock or SystemClock()
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())

    def read(self) -> Reading:
        """The server now. Raises TidemillError in one line if it cannot be read."""
        status, page = self._get("/metrics")
        if status in (401, 403):
            raise TidemillError(
                f"{self.url}/metrics takes no key like this: give one with --api-key or TIDEMILL_API_KEY"
            )
        if status != 200:
            raise TidemillError(f"{self.url}/metrics answers with status {status}")
        time = self._clock.now()
        return parse(page, time=time, problem=self._problem())

    def _problem(self) -> str | None:
        """From /ready, or where there is none, /health."""
        status, body = self._get("/ready")
        if status == 404:
            status, body = self._get("/health")
        if status < 400:
            return None
        try:
            return str(json.loads(body)["error"]["message"])
        except (ValueError, KeyError, TypeError):
            return f"it is not ready: status {status}"

    def _get(self, path: str) -> tuple[int, str]:
        try:
            request = urllib.request.Request(self.url + path, headers=self._headers)
            with self._opener.open(request, timeout=_SECONDS) as answer:
                return answer.status, answer.read(_MOST_BYTES).decode("utf-8", "replace")
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read(_MOST_BYTES).decode("utf-8", "replace")
        except (OSError, HTTPException, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise TidemillError(f"cannot read {self.url}{path}: {reason}") from error


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_args: Any, **_named: Any) -> None:
        return None

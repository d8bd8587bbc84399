"""The engines that are known, each by the exact names of its pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tidemill.gateway.engines import pages
from tidemill.gateway.routing.gauges import Gauges

__all__ = ["ADAPTERS", "Adapter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """One kind of engine. Paths are seen from its root, not from its ``/v1``."""

    health: str
    """200 there: it can take work."""
    metrics: tuple[str, ...] = ()
    """Where its gauges are: on the first of these pages that there is."""
    gauges: Callable[[str, float], Gauges] = pages.nothing
    """Reads that page: its text, and the time of now."""
    continues: Mapping[str, object] | None = None
    """Fields of a chat that make it go on with its last message, an assistant's; None: it cannot."""


_CONTINUES: Final = {"continue_final_message": True, "add_generation_prompt": False}
_SGLANG_CONTINUES: Final = {"continue_final_message": True}
ADAPTERS: Final[Mapping[str, Adapter]] = {
    "tidemill": Adapter(health="/ready", metrics=("/metrics",), gauges=pages.vllm, continues=_CONTINUES),
    "vllm": Adapter(health="/health", metrics=("/metrics",), gauges=pages.vllm, continues=_CONTINUES),
    "sglang": Adapter(health="/health", metrics=("/metrics",), gauges=pages.sglang, continues=_SGLANG_CONTINUES),
    "tgi": Adapter(health="/health", metrics=("/metrics",), gauges=pages.tgi),
    "tensorrt-llm": Adapter(
        # in this order: reading the second page takes away what the first is made of
        health="/health",
        metrics=("/prometheus/metrics", "/metrics"),
        gauges=pages.tensorrt_llm,
    ),
    "llama.cpp": Adapter(health="/health", metrics=("/metrics",), gauges=pages.llama_cpp, continues={}),
    "openai": Adapter(health="/v1/models"),
}

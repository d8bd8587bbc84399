"""Whether a model stands a KV cache of whole numbers: its logits on a short text with KV in f16, then in that format.

Some models have channels of keys that are far larger than their neighbours in a group, whose steps they decide: the
others then become nothing. No file says so, and answers stay fluent for a while; so it is tried at every start.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tidemill.core.config import ExecutorConfig
from tidemill.core.errors import ConfigError
from tidemill.executors.protocol import Executor, KvPoolSpec
from tidemill.graph.kv_format import KvFormat
from tidemill.models.calibration import MOST_SECONDS, Figures, calibration_tokens, figures, text_logits
from tidemill.models.model import Model

__all__ = ["KvComparison", "compare_kv"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KvComparison:
    """What was found, or why nothing was."""

    kv_format: KvFormat
    figures: Figures | None = None
    reason: str = ""

    def verdict(self, config: ExecutorConfig) -> str:
        """One line for people. Raises ConfigError where the distance is above kv_check_limit, or is no number."""
        if self.figures is None:
            return f"kv_format {self.kv_format}: not compared with f16: {self.reason}"
        found = self.figures
        distance = f"mean KL {found.mean_kl:.5f} nats to f16 on {found.positions} positions of a built-in English text"
        other = "q8_0 or f16" if self.kv_format is KvFormat.Q4_0 else "f16"
        if math.isnan(found.mean_kl) or found.mean_kl > config.kv_check_limit:
            raise ConfigError(
                f"kv_format is {self.kv_format}, which this model does not stand: {distance}, more than kv_check_limit "
                f"({config.kv_check_limit:g}); use {other}, or raise kv_check_limit",
                param="kv_format",
            )
        line = (
            f"kv_format {self.kv_format}: {distance}, same most likely token {found.agreement:.1%}, "
            f"perplexity {found.perplexity:.3f} (f16 {found.exact_perplexity:.3f})"
        )
        if found.mean_kl <= config.kv_check_warn:
            return line
        return f"warning: {line}; that is more than kv_check_warn ({config.kv_check_warn:g}): use {other}"


def compare_kv(model: Model, config: ExecutorConfig, executor: Executor, pools: Sequence[KvPoolSpec]) -> KvComparison:
    """Run the text twice. Afterwards the executor has these pools in its own format, free to use."""
    kv_format = KvFormat(config.resolved_kv_format)
    if model.graph.pools:
        executor.allocate_kv(pools)
        return KvComparison(kv_format=kv_format, reason="a model of embeddings draws no tokens")
    tokens = calibration_tokens(model, config.kv_check)
    tokens = tokens[: min(pool.num_blocks * pool.block_size for pool in pools)]
    if len(tokens) < 2:
        executor.allocate_kv(pools)
        return KvComparison(kv_format=kv_format, reason="the text has no tokens of this vocabulary")
    needed = -(-len(tokens) // pools[0].block_size)
    small = [replace(pool, num_blocks=min(pool.num_blocks, needed)) for pool in pools]
    blocks = [pool.num_blocks for pool in small]
    executor.allocate_kv(small, KvFormat.F16)
    exact = text_logits(executor, tokens, blocks, pools[0].block_size, MOST_SECONDS)
    executor.allocate_kv(pools)
    tokens = tokens[: len(exact)]
    rounded = text_logits(executor, tokens, blocks, pools[0].block_size)
    return KvComparison(kv_format=kv_format, figures=figures(exact, rounded, tokens))

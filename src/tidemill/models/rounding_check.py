"""How far rounding the weights moves the answers: the checkpoint's own logits on a short text, then the rounded ones'.

The checkpoint's weights are packed, run and let go before the rounded ones are packed, so both are never held; between
the two stay the logits of the text, 4 bytes per position and token of the vocabulary. Where the checkpoint does not fit
the memory, nothing is compared, and that is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tidemill.core.config import EngineConfig
from tidemill.core.errors import DoesNotFit
from tidemill.executors.factory import make_executor
from tidemill.executors.protocol import Executor, KvPoolSpec
from tidemill.graph.passes.fuse import fuse
from tidemill.models.calibration import CHUNK, MOST_SECONDS, calibration_tokens, figures, text_logits
from tidemill.models.loading.rounding import RoundedWeights
from tidemill.models.memory_plan import format_bytes, plan_memory
from tidemill.models.model import Model

__all__ = ["ExactAnswers", "exact_answers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactAnswers:
    """What the checkpoint's own weights say, or why that is not known."""

    scheme: str
    tokens: Sequence[int] = ()
    logits: npt.NDArray[np.float32] | None = None
    """[tokens, vocabulary]"""
    reason: str = ""

    def report(self, executor: Executor, pools: Sequence[KvPoolSpec]) -> str:
        """One line: how far the executor of the rounded weights is from them. Its KV blocks are free to use."""
        if self.logits is None:
            return f"quantize {self.scheme}: not compared with the checkpoint: {self.reason}"
        room = min(pool.num_blocks * pool.block_size for pool in pools)
        tokens = self.tokens[:room]
        rounded = text_logits(executor, tokens, [pool.num_blocks for pool in pools], pools[0].block_size)
        found = figures(self.logits[: len(tokens)], rounded, tokens)
        return (
            f"quantize {self.scheme}: mean KL {found.mean_kl:.5f} nats to the checkpoint's weights, "
            f"same most likely token {found.agreement:.1%}, "
            f"perplexity {found.perplexity:.3f} (checkpoint {found.exact_perplexity:.3f}); "
            f"{found.positions} positions of a built-in English text"
        )


def exact_answers(model: Model, config: EngineConfig, available: int) -> ExactAnswers | None:
    """Run the text on the weights as the checkpoint has them. None: not asked for."""
    assert isinstance(model.weights, RoundedWeights)
    scheme = model.weights.scheme
    if config.model.quantize_check == 0:
        return None
    if model.graph.pools:
        return ExactAnswers(scheme=scheme, reason="a model of embeddings draws no tokens")
    tokens = calibration_tokens(model, config.model.quantize_check)
    if len(tokens) < 2:
        return ExactAnswers(scheme=scheme, reason="the text has no tokens of this vocabulary")
    plain = replace(model, weights=model.weights.unrounded)
    small = replace(
        config,
        model=replace(config.model, quantize=None, max_model_len=len(tokens)),
        scheduler=replace(config.scheduler, max_running=1, max_step_tokens=CHUNK),
        executor=replace(config.executor, packed_cache="off"),
        kv_memory=None,
    )
    try:
        plan = plan_memory(plain, small, available - 4 * len(tokens) * model.vocab_size)
    except DoesNotFit as error:
        need = error.message.split(";")[0]
        return ExactAnswers(scheme=scheme, reason=f"{need} ({format_bytes(available)} available)")
    executor = make_executor(fuse(plain.graph), plain.weights, small.executor)
    try:
        pools = plan.pools()
        executor.allocate_kv(pools)
        blocks = [pool.num_blocks for pool in pools]
        logits = text_logits(executor, tokens, blocks, config.block_size, MOST_SECONDS)
    finally:
        executor.close()
    return ExactAnswers(scheme=scheme, tokens=tokens[: len(logits)], logits=logits)

"""Small random models made in memory, in any weight format, for tests that compare an engine with itself.

Seeded and scaled so that attention is peaked and the logits are spread out: a wrong key, position or neighbour shows.
Golden values do not come from here; tests/golden compares with transformers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tests.support.block_encoder import encode_blocks
from tidemill.core.config import ExecutorConfig, SchedulerConfig
from tidemill.core.embedding import Embedding
from tidemill.core.sampling import SamplingOptions
from tidemill.core.tokens import EngineInfo, TokenDelta, TokenRequest
from tidemill.engine.adapters import Adapters
from tidemill.engine.loop import EngineLoop
from tidemill.engine.proposer import Proposer
from tidemill.engine.rejection import RejectionSampling
from tidemill.engine.speculation import lengths_of, proposers_of
from tidemill.executors.factory import make_executor
from tidemill.executors.protocol import Executor, KvPoolSpec
from tidemill.graph.formats import WeightFormat, WeightTensor
from tidemill.graph.graph import Graph
from tidemill.graph.lora import Adapter, AdapterNumber, LowRankDelta, adapter_targets
from tidemill.graph.passes.fuse import fuse
from tidemill.models.fields import Fields
from tidemill.models.registry import build_graph
from tidemill.scheduling.kv.space import KvGroupSpace, KvSpace
from tidemill.scheduling.scheduler import Scheduler
from tidemill.text.grammars import Grammars

VOCAB = 352
CONFIG: Mapping[str, object] = {
    "model_type": "llama",
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": VOCAB,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
    "moe_intermediate_size": 64,
}
# Rows of whole blocks for the formats with blocks of 256 values.
WIDE: Mapping[str, object] = {
    "hidden_size": 256,
    "intermediate_size": 256,
    "moe_intermediate_size": 256,
    "num_attention_heads": 48,
}
GEMMA: Mapping[str, object] = {
    "model_type": "gemma3_text",
    "num_hidden_layers": 3,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "sliding_window": 40,
    "query_pre_attn_scalar": 2.0,
    "attn_logit_softcapping": 4.0,
    "final_logit_softcapping": 12.0,
}
"""Fields that make of CONFIG a model with everything that local attention brings: two KV groups, soft caps of scores
and logits, norms of each query and key head, GELU."""

ENCODER: Mapping[str, object] = {
    "model_type": "bert",
    "num_hidden_layers": 3,
    "layer_norm_eps": 1e-5,
    "max_position_embeddings": 512,
}
"""Fields that make of CONFIG an encoder."""

VARIANTS: Mapping[str, Mapping[str, object]] = {
    "gemma2": {
        "model_type": "gemma2",
        "sliding_window": 24,
        "query_pre_attn_scalar": 8.0,
        "attn_logit_softcapping": 6.0,
        "final_logit_softcapping": 12.0,
    },
    "gemma3_text": GEMMA,
    "gpt_oss": {
        "model_type": "gpt_oss",
        "sliding_window": 24,
        "num_local_experts": 6,
        "num_experts_per_tok": 2,
        "swiglu_limit": 1.5,
        "rope_scaling": {
            "type": "yarn",
            "factor": 4.0,
            "truncate": False,
            "original_max_position_embeddings": 256,
        },
    },
    "granite": {
        "model_type": "granite",
        "embedding_multiplier": 2.0,
        "residual_multiplier": 0.5,
        "attention_multiplier": 0.3,
        "logits_scaling": 0.75,
    },
    "granitemoe": {
        "model_type": "granitemoe",
        "num_local_experts": 7,
        "num_experts_per_tok": 3,
        "embedding_multiplier": 2.0,
        "residual_multiplier": 0.5,
        "attention_multiplier": 0.3,
        "logits_scaling": 0.75,
    },
    "llama": {},
    "mistral": {"model_type": "mistral", "sliding_window": 33},
    "mixtral": {"model_type": "mixtral", "num_local_experts": 6, "num_experts_per_tok": 2},
    "olmo2": {"model_type": "olmo2"},
    "phi3": {
        "model_type": "phi3",
        "partial_rotary_factor": 0.75,
        "original_max_position_embeddings": 256,
        "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 6, "long_factor": [1, 1, 2, 2, 4, 4]},
    },
    "qwen2": {
        "model_type": "qwen2",
        "num_hidden_layers": 3,
        "use_sliding_window": True,
        "max_window_layers": 2,
        "sliding_window": 64,
    },
    "qwen2_moe": {
        "model_type": "qwen2_moe",
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "shared_expert_intermediate_size": 256,
    },
    "qwen3": {
        "model_type": "qwen3",
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256},
    },
    "qwen3_moe": {
        "model_type": "qwen3_moe",
        "num_experts": 10,
        "num_experts_per_tok": 3,
        "norm_topk_prob": True,
    },
}
"""Fields that make of CONFIG a model of each architecture, with what it has beyond the others."""


def encode(name: str, values: npt.NDArray[np.float32], format_: WeightFormat) -> WeightTensor:
    """Store a matrix or vector in a format; block formats get plain rounding."""
    if values.ndim == 1 or format_ is WeightFormat.F32:
        data = values.astype("<f4").tobytes()
        format_ = WeightFormat.F32
    elif format_ is WeightFormat.F16:
        data = values.astype("<f2").tobytes()
    elif format_ is WeightFormat.BF16:
        data = (values.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
    else:
        data = encode_blocks(values, format_).tobytes()
    flat = np.frombuffer(data, dtype=np.uint8)
    return WeightTensor(name=name, format=format_, shape=values.shape, data=flat)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TinyModel:
    """A graph with its weights."""

    graph: Graph
    weights: Mapping[str, WeightTensor]


def tiny_model(format_: WeightFormat = WeightFormat.Q4_1, *, seed: int = 11, **config: object) -> TinyModel:
    """A seeded random Llama; ``config`` replaces fields of CONFIG (``**GEMMA``: another architecture)."""
    wide = WIDE if format_.block_values == 256 else {}
    graph = build_graph(Fields({**CONFIG, **wide, **config}, "tiny"))
    random = np.random.default_rng(seed)
    weights = {}
    for spec in graph.weights:
        if len(spec.shape) == 1:
            values = 1 + 0.2 * random.standard_normal(spec.shape)
        else:
            # q and k are scaled up so that a few keys take most of the attention.
            gain = 2.5 if "q_proj" in spec.name or "k_proj" in spec.name else 1.0
            values = gain * random.standard_normal(spec.shape) / np.sqrt(spec.shape[-1])
            if "embed" in spec.name:
                values *= 3.0
        weights[spec.name] = encode(spec.name, values.astype(np.float32), format_)
    return TinyModel(graph=graph, weights=weights)


def tiny_adapter(graph: Graph, *parts: str, seed: int = 1, rank: int = 4) -> Adapter:
    """A seeded adapter of the weights whose names have one of these parts; large enough to change every token."""
    random = np.random.default_rng(seed)
    deltas = {}
    for name, spec in adapter_targets(graph).items():
        if any(part in name for part in parts):
            outputs, inputs = spec.shape
            a = random.standard_normal((rank, inputs)) / np.sqrt(inputs)
            b = random.standard_normal((outputs, rank))
            deltas[name] = LowRankDelta(a=a.astype(np.float32), b=b.astype(np.float32), scale=0.7)
    return Adapter(deltas=deltas)


ADAPTER_PARTS: tuple[tuple[str, ...], ...] = (("q_proj",), ("v_proj", "down_proj", "gate_proj"), ("_proj", "lm_head"))
"""What three adapters change: a part of what is fused, parts of several layers, everything."""


@cache
def tiny_adapters(model: TinyModel) -> tuple[Adapter, ...]:
    """Adapters 1, 2, 3 of a model: of ranks that fill no vector, one, and more than one."""
    return tuple(
        tiny_adapter(model.graph, *parts, seed=seed, rank=rank)
        for seed, (rank, parts) in enumerate(zip((3, 8, 17), ADAPTER_PARTS, strict=True))
    )


@dataclass(kw_only=True)
class Rig:
    """One way to run a tiny model; every field is something an answer must not depend on."""

    model: TinyModel
    executor: ExecutorConfig = field(default_factory=lambda: ExecutorConfig(threads=1))
    block_size: int = 16
    num_blocks: int = 256
    max_step_tokens: int = 512
    max_running: int = 64
    itl_target: float = 0.0
    fused: bool = True
    prefix_cache: Literal["on", "off"] = "on"
    jump_ahead: Literal["on", "off"] = "on"
    policy: Literal["continuous", "dynamic", "static-compacted", "static"] = "continuous"
    row_variant: int = 0
    speculate: str = "off"
    speculate_length: Literal["adaptive", "fixed"] = "fixed"
    rejection: bool = False
    proposers: Sequence[Proposer] = ()
    """Besides those that ``speculate`` names."""
    end_token_ids: tuple[int, ...] = (0,)
    adapters: Sequence[Adapter] = ()
    """Those that the executor has, under the numbers 1, 2, ..., and requests name a1, a2, ..."""

    @property
    def embedding(self) -> Embedding | None:
        """How the model embeds, if it does."""
        graph = self.model.graph
        return Embedding(pooling="mean", normalize=False, width=graph.logits.width) if graph.pools else None

    def make_executor(self) -> Executor:
        """The executor with its KV allocated, and its adapters."""
        executor = self._bare_executor()
        for index, adapter in enumerate(self.adapters):
            executor.add_adapter(AdapterNumber(index + 1), adapter)
        return executor

    def _bare_executor(self) -> Executor:
        graph = fuse(self.model.graph) if self.fused else self.model.graph
        executor = make_executor(
            graph,
            self.model.weights,
            self.executor,
            force_row_variant=self.row_variant,
            adapters=bool(self.adapters),
        )
        executor.allocate_kv(
            [KvPoolSpec(group=g.name, num_blocks=self.num_blocks, block_size=self.block_size) for g in graph.kv_groups]
        )
        return executor

    def _named_adapters(self, executor: Executor) -> Adapters | None:
        """``read`` finds the adapter whose number is the path; one more than are there may be loaded."""
        if not self.adapters:
            return None
        adapters = Adapters(
            executor, lambda source: self.adapters[int(source.path)], most=len(self.adapters) + 1, model="tiny"
        )
        for index, adapter in enumerate(self.adapters):
            adapters.add(f"a{index + 1}", adapter)
        return adapters

    def make_loop(self, grammars: Grammars | None = None, **parts: Any) -> EngineLoop:
        """An engine over it, with strict checks."""
        config = SchedulerConfig(
            max_running=self.max_running,
            max_step_tokens=self.max_step_tokens,
            itl_target=self.itl_target,
            chunked_prefill=not self.model.graph.whole,
            prefix_cache=self.prefix_cache,
            jump_ahead=self.jump_ahead,
            policy=self.policy,
            batch_wait=0.0,
            speculate=self.speculate,
            speculate_length=self.speculate_length,
            speculate_tokens=5,
        )
        space = KvSpace(
            [
                KvGroupSpace(num_blocks=self.num_blocks, block_size=self.block_size, window=group.window)
                for group in self.model.graph.kv_groups
            ]
        )
        info = EngineInfo(
            model="tiny",
            vocab_size=self.model.graph.vocab_size,
            max_model_len=min(1024, self.model.graph.positions or 1024),
            kv_capacity_tokens=self.num_blocks * self.block_size,
            end_token_ids=self.end_token_ids,
            embedding=self.embedding,
        )
        executor = self._bare_executor()
        return EngineLoop(
            executor=executor,
            adapters=self._named_adapters(executor),
            scheduler=Scheduler(config, space, copies=True),
            info=info,
            seeds=lambda: 1,
            strict=True,
            kv_groups=[group.name for group in self.model.graph.kv_groups],
            grammars=grammars,
            proposers=[*proposers_of(config), *self.proposers],
            lengths=lengths_of(config),
            rejection=RejectionSampling() if self.rejection else None,
            **parts,
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """What one choice gave, for comparison with ==."""

    tokens: tuple[int, ...]
    logprobs: tuple[tuple[float, tuple[tuple[int, float], ...]], ...]
    finish: str


def run(loop: EngineLoop, requests: list[TokenRequest], *, stagger: int = 0) -> dict[tuple[str, int], Answer]:
    """Run requests to their ends, adding one every ``stagger`` steps (0: all at once)."""
    tokens: dict[tuple[str, int], list[int]] = {}
    logprobs: dict[tuple[str, int], list[tuple[float, tuple[tuple[int, float], ...]]]] = {}
    finish: dict[tuple[str, int], str] = {}
    waiting = list(requests)
    steps = 0
    while waiting or loop.has_work:
        if waiting and (not stagger or steps % stagger == 0):
            loop.add(waiting.pop(0))
            if not stagger:
                continue
        for delta in loop.step():
            _collect(delta, tokens, logprobs, finish)
        steps += 1
        assert steps < 20_000, "the loop does not come to an end"
    loop.check_idle()
    return {key: Answer(tuple(tokens.get(key, ())), tuple(logprobs.get(key, ())), finish[key]) for key in finish}


def _collect(
    delta: TokenDelta,
    tokens: dict[tuple[str, int], list[int]],
    logprobs: dict[tuple[str, int], list[tuple[float, tuple[tuple[int, float], ...]]]],
    finish: dict[tuple[str, int], str],
) -> None:
    key = (delta.request_id, delta.choice)
    assert key not in finish, "a delta after the end"
    tokens.setdefault(key, []).extend(delta.tokens)
    logprobs.setdefault(key, []).extend((one.logprob, one.top) for one in delta.logprobs or ())
    if delta.finish_reason is not None:
        finish[key] = delta.finish_reason.value


def request(name: str, prompt: list[int], **sampling: object) -> TokenRequest:
    """A request with log-probabilities, so that == sees more than the tokens."""
    options = {"temperature": 0.0, "max_tokens": 24, "logprobs": 3, "ignore_eos": True, **sampling}
    return TokenRequest(request_id=name, prompt=prompt, sampling=SamplingOptions(**options))  # type: ignore[arg-type]

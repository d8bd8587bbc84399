"""Attention alone: a graph whose logits are the output of one attention node, and what numpy says of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tests.executors.native.small_graphs import SmallGraph, executor_for, plan_row, step
from tidemill.core.config import ExecutorConfig
from tidemill.executors.native.executor import NativeExecutor
from tidemill.executors.reference.kv_rows import decode_heads, encode_heads
from tidemill.graph.graph import Attention, KvGroup, RopeSpec, Value
from tidemill.graph.kv_format import KvFormat


class AttentionRig:
    """q, k and v of a token are rows of three random tables; the executor's logits are the attention's output."""

    def __init__(
        self,
        heads: int,
        kv_heads: int,
        head_dim: int,
        *,
        rope: bool = False,
        seed: int = 0,
        window: int | None = None,
        soft_cap: float | None = None,
        sinks: bool = False,
        causal: bool = True,
    ) -> None:
        random = np.random.default_rng(seed)
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        vocab = heads * head_dim
        # Scaled so that a few keys take most of the weight.
        self.q = (2 * random.standard_normal((vocab, vocab))).astype(np.float32)
        self.k = random.standard_normal((vocab, kv_heads * head_dim)).astype(np.float32)
        self.v = random.standard_normal((vocab, kv_heads * head_dim)).astype(np.float32)
        self.vocab = vocab
        self.window, self.soft_cap, self.causal = window, soft_cap, causal
        self.scale = head_dim**-0.5
        # Some below all scores, some above them.
        self.sinks = np.linspace(-2.0, 12.0, heads, dtype=np.float32) if sinks else None
        self.rope = RopeSpec(inv_freq=tuple(0.7**i for i in range(head_dim // 2))) if rope else None

    def executor(
        self,
        *,
        block_size: int = 16,
        merged: bool = False,
        num_blocks: int = 64,
        config: ExecutorConfig | None = None,
    ) -> NativeExecutor:
        small = SmallGraph()
        out = self.attend(small, "full", merged=merged)
        return executor_for(
            small, out, block_size=block_size, num_blocks=num_blocks, config=config or ExecutorConfig(threads=1)
        )

    def attend(self, small: SmallGraph, group: str, *, merged: bool = False) -> Value:
        """Add a KV group, the tables and the attention to a graph."""
        small.groups.append(
            KvGroup(name=group, layers=1, kv_heads=self.kv_heads, head_dim=self.head_dim, window=self.window)
        )
        if merged:
            q = small.embed(f"{group}.qkv", np.concatenate([self.q, self.k, self.v], axis=1))
            k = v = None
        else:
            q, k, v = (small.embed(f"{group}.{name}", getattr(self, name)) for name in "qkv")
        return small.add(
            self.vocab,
            lambda o: Attention(
                q=q,
                k=k,
                v=v,
                heads=self.heads,
                kv_heads=self.kv_heads,
                head_dim=self.head_dim,
                scale=self.scale,
                group=group,
                layer=0,
                rope=self.rope,
                window=self.window,
                soft_cap=self.soft_cap,
                sinks=None if self.sinks is None else small.weight(f"{group}.sinks", self.sinks),
                causal=self.causal,
                out=o,
            ),
        )

    def expected(self, tokens: Sequence[int], kv_format: KvFormat) -> npt.NDArray[np.float64]:
        """Softmax attention in float64 over keys and values rounded to the KV format."""
        n, group = len(tokens), self.heads // self.kv_heads
        q = self._rotated(self.q[tokens].reshape(n, self.heads, self.head_dim))
        k = self._rotated(self.k[tokens].reshape(n, self.kv_heads, self.head_dim))
        k = np.repeat(stored(k, kv_format), group, axis=1)
        v = stored(self.v[tokens].reshape(n, self.kv_heads, self.head_dim), kv_format)
        scores = np.einsum("qhd,khd->hqk", q, k) * self.scale
        if self.soft_cap is not None:
            scores = self.soft_cap * np.tanh(scores / self.soft_cap)
        distance = np.arange(n)[:, None] - np.arange(n)
        if self.causal:
            scores[:, (distance < 0) | (distance >= (self.window or n))] = -np.inf
        if self.sinks is not None:
            beside = np.broadcast_to(self.sinks[:, None, None], (self.heads, n, 1)).astype(np.float64)
            scores = np.concatenate([scores, beside], axis=-1)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights = weights[:, :, :n] / weights.sum(axis=-1, keepdims=True)
        return np.einsum("hqk,khd->qhd", weights, np.repeat(v, group, axis=1)).reshape(n, -1)

    def _rotated(self, x: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        if self.rope is None:
            return x.astype(np.float64)
        half = len(self.rope.inv_freq)
        angle = np.arange(len(x))[:, None, None] * np.asarray(self.rope.inv_freq)
        a, b = x[..., :half].astype(np.float64), x[..., half:].astype(np.float64)
        cos, sin = np.cos(angle), np.sin(angle)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    def tokens(self, count: int, seed: int = 1) -> list[int]:
        return np.random.default_rng(seed).integers(0, self.vocab, count).tolist()


def stored(heads: npt.NDArray[np.floating], kv_format: KvFormat) -> npt.NDArray[np.float64]:
    """Heads [..., dimension] as the KV cache keeps them (compared with the gguf package in tests/golden)."""
    data = encode_heads(heads.astype(np.float32), kv_format)
    return decode_heads(data, kv_format, heads.shape[-1]).astype(np.float64)


def run_in_chunks(
    executor: NativeExecutor, tokens: Sequence[int], blocks: Sequence[int], chunks: Sequence[int]
) -> npt.NDArray[np.float32]:
    """The output of every position, computed in chunks of these sizes (the last one takes the rest)."""
    found, start = [], 0
    for size in [*chunks, len(tokens)]:
        part = list(tokens[start : start + size])
        if part:
            found.append(executor.logits(step(plan_row(part, start=start, blocks=blocks)))[0])
        start += size
    return np.concatenate(found)

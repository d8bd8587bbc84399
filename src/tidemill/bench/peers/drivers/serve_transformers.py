"""Transformers behind HTTP: those that wait become a batch, padded on the left, which runs to the end of its longest
answer, as a loop over ``generate`` does.

python-with-transformers serve_transformers.py MODEL --port N --threads N --streams N --dtype bfloat16|float32
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from token_server import serve  # type: ignore[import-not-found]


@dataclass(eq=False)
class One:
    """One request; it is its own handle."""

    ids: Sequence[int]
    left: int
    gone: bool = False


class Transformers:
    """Implements Engine."""

    def __init__(self, model: str, *, threads: int, streams: int, dtype: str) -> None:
        self._torch: Any = importlib.import_module("torch")
        transformers: Any = importlib.import_module("transformers")
        self._torch.set_num_threads(threads)
        path = Path(model)
        where = (str(path.parent), {"gguf_file": path.name}) if path.suffix == ".gguf" else (model, {})
        loaded = transformers.AutoModelForCausalLM.from_pretrained(
            where[0], dtype=getattr(self._torch, dtype), **where[1]
        )
        self._model = loaded.eval()
        self._streams = streams
        self._waiting: list[One] = []
        self._batch: list[One] = []
        self._state: Any = None

    def add(self, ids: Sequence[int], tokens: int) -> One:
        """It waits for the batch after this one."""
        self._waiting.append(One(ids=ids, left=tokens))
        return self._waiting[-1]

    def step(self) -> Iterator[tuple[One, int, bool]]:
        """One token of each answer of the batch; ended ones are computed on until all have ended."""
        with self._torch.inference_mode():
            if not any(one.left > 0 and not one.gone for one in self._batch):
                self._begin()
            else:
                self._go_on()
        for one in self._batch:
            if one.left > 0 and not one.gone:
                one.left -= 1
                yield one, 1, one.left == 0

    def cancel(self, handle: One) -> None:
        """Nobody reads it; its row stays in the batch."""
        handle.gone = True
        if handle in self._waiting:
            self._waiting.remove(handle)

    def _begin(self) -> None:
        self._batch, self._waiting = self._waiting[: self._streams], self._waiting[self._streams :]
        if not self._batch:
            return
        torch = self._torch
        longest = max(len(one.ids) for one in self._batch)
        pads = [longest - len(one.ids) for one in self._batch]
        ids = torch.tensor([[0] * pad + list(one.ids) for pad, one in zip(pads, self._batch, strict=True)])
        mask = torch.tensor([[0] * pad + [1] * len(one.ids) for pad, one in zip(pads, self._batch, strict=True)])
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        self._run(ids, mask, positions, None)

    def _go_on(self) -> None:
        ids, mask, positions, cache = self._state
        ones = self._torch.ones((len(self._batch), 1), dtype=mask.dtype)
        self._run(ids, self._torch.cat([mask, ones], -1), positions + 1, cache)

    def _run(self, ids: Any, mask: Any, positions: Any, cache: Any) -> None:
        out = self._model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        drawn = out.logits[:, -1:].argmax(-1)
        self._state = drawn, mask, positions[:, -1:], out.past_key_values


def main() -> None:
    """Load and serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    for name in ("port", "threads", "streams"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--dtype", required=True)
    asked = parser.parse_args()
    serve(Transformers(asked.model, threads=asked.threads, streams=asked.streams, dtype=asked.dtype), asked.port)


if __name__ == "__main__":
    main()

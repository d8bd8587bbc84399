"""OpenVINO GenAI's continuous batching on a GGUF file or a folder, behind HTTP.

python-with-openvino-genai serve_openvino.py MODEL --port N --threads N --streams N --batched-tokens N
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator, Sequence
from typing import Any

from token_server import serve  # type: ignore[import-not-found]


class OpenVino:
    """Implements Engine. Requests have ascending numbers, which are their handles."""

    def __init__(self, model: str, *, threads: int, streams: int, batched_tokens: int) -> None:
        self._genai: Any = importlib.import_module("openvino_genai")
        self._openvino: Any = importlib.import_module("openvino")
        self._numpy: Any = importlib.import_module("numpy")
        scheduler = self._genai.SchedulerConfig()
        scheduler.cache_size = 2
        scheduler.max_num_seqs = streams
        scheduler.max_num_batched_tokens = batched_tokens
        scheduler.enable_prefix_caching = True
        options = {"INFERENCE_NUM_THREADS": threads}
        self._pipe = self._genai.ContinuousBatchingPipeline(model, scheduler, "CPU", options)
        self._number = 0
        self._open: dict[int, Any] = {}

    def add(self, ids: Sequence[int], tokens: int) -> int:
        """Queue it."""
        self._number += 1
        config = self._genai.GenerationConfig(max_new_tokens=tokens, ignore_eos=True, do_sample=False)
        prompt = self._openvino.Tensor(self._numpy.array([ids], self._numpy.int64))
        self._open[self._number] = self._pipe.add_request(self._number, prompt, config)
        return self._number

    def step(self) -> Iterator[tuple[int, int, bool]]:
        """One step of the pipeline."""
        self._pipe.step()
        for number, handle in list(self._open.items()):
            new = 0
            while handle.can_read():
                new += sum(len(output.generated_ids) for output in handle.read().values())
            ended = str(handle.get_status()).rpartition(".")[2] != "RUNNING"
            if ended:
                del self._open[number]
            if new or ended:
                yield number, new, ended

    def cancel(self, handle: int) -> None:
        """Stop it; the next step drops it."""
        if (found := self._open.pop(handle, None)) is not None:
            found.stop()


def main() -> None:
    """Load and serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    for name in ("port", "threads", "streams", "batched-tokens"):
        parser.add_argument(f"--{name}", type=int, required=True)
    asked = parser.parse_args()
    engine = OpenVino(asked.model, threads=asked.threads, streams=asked.streams, batched_tokens=asked.batched_tokens)
    serve(engine, asked.port)


if __name__ == "__main__":
    main()

"""OpenVINO GenAI's continuous batching on a GGUF file or a folder, in this process.

python-with-openvino-genai drive_openvino.py MODEL THREADS
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from answering import Values, answer, token_ids

_DECODED = 48
"""Tokens per stream of a turn at most."""


def main() -> None:
    """Load and answer."""
    model, threads = sys.argv[1], int(sys.argv[2])

    def start() -> tuple[Values, Callable[[Values], Values]]:
        import openvino_genai as genai

        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = 2
        scheduler.max_num_seqs = 64
        scheduler.max_num_batched_tokens = 4096
        # Decoding begins anew at its context in each turn without reading the prompts again; prompts that are
        # measured are new ones.
        scheduler.enable_prefix_caching = True
        pipe = genai.ContinuousBatchingPipeline(model, scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads})
        return {"ready": f"openvino-genai {genai.__version__}"}, Driver(pipe).turn

    answer(start)


class Driver:
    """Requests have ascending numbers."""

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe
        self._number = 0

    def turn(self, ask: Values) -> Values:
        """``do``: "work" or "serve"."""
        if ask["do"] == "serve":
            return self._serve(ask)
        return self._decode(ask) if ask["context"] else self._prefill(ask)

    def _prefill(self, ask: Values) -> Values:
        times: list[float] = []
        begin = time.perf_counter()
        if ask["turn"] < 0:
            self._read_prompt(ask["tokens"])
        while not times or time.perf_counter() - begin + times[-1] < ask["seconds"]:
            times.append(self._read_prompt(ask["tokens"]))
        return {"rate": ask["tokens"] / statistics.median(times)}

    def _read_prompt(self, tokens: int) -> float:
        """Seconds for a prompt that was not seen before."""
        begin = time.perf_counter()
        handle = self._add(token_ids(tokens, self._number + 1), 1)  # a request whose handle is gone is dropped
        self._drain()
        seconds = time.perf_counter() - begin
        assert _new_tokens(handle) == 1
        return seconds

    def _decode(self, ask: Values) -> Values:
        handles = [
            self._add(token_ids(ask["context"], 100_000 + stream), _DECODED + 1) for stream in range(ask["streams"])
        ]
        waiting = list(handles)
        while waiting:
            self._pipe.step()
            waiting = [handle for handle in waiting if not _new_tokens(handle)]
        for handle in handles:
            _new_tokens(handle)
        tokens = 0
        begin = time.perf_counter()
        while tokens == 0 or (time.perf_counter() - begin < ask["seconds"] and self._pipe.has_non_finished_requests()):
            self._pipe.step()
            tokens += sum(map(_new_tokens, handles))
        seconds = time.perf_counter() - begin
        for handle in handles:
            handle.stop()
        self._drain()
        return {"rate": tokens / seconds}

    def _serve(self, ask: Values) -> Values:
        """A closed loop: as many requests at a time as there are clients."""
        prompts = iter(ask["prompts"])
        open_: dict[Any, float] = {}
        first: list[float] = []
        tokens = 0

        def next_one() -> Iterator[tuple[Any, float]]:
            for prompt in prompts:
                yield self._add(prompt, ask["max_tokens"]), time.perf_counter()
                return

        begin = time.perf_counter()
        for _ in range(ask["clients"]):
            open_.update(next_one())
        seen: set[int] = set()
        while open_:
            self._pipe.step()
            now = time.perf_counter()
            for handle, asked in list(open_.items()):
                if new := _new_tokens(handle):
                    tokens += new
                    if id(handle) not in seen:
                        seen.add(id(handle))
                        first.append(now - asked)
                if _ended(handle):
                    del open_[handle]
                    open_.update(next_one())
        return {"tokens": tokens, "seconds": time.perf_counter() - begin, "first": first}

    def _add(self, prompt: list[int], tokens: int) -> Any:
        import numpy as np
        import openvino as ov
        import openvino_genai as genai

        self._number += 1
        config = genai.GenerationConfig(max_new_tokens=tokens, ignore_eos=True, do_sample=False)
        return self._pipe.add_request(self._number, ov.Tensor(np.array([prompt], np.int64)), config)

    def _drain(self) -> None:
        while self._pipe.has_non_finished_requests():
            self._pipe.step()


def _new_tokens(handle: Any) -> int:
    """How many tokens came since the last look."""
    count = 0
    while handle.can_read():
        count += sum(len(output.generated_ids) for output in handle.read().values())
    return count


def _ended(handle: Any) -> bool:
    return str(handle.get_status()).rpartition(".")[2] != "RUNNING"


if __name__ == "__main__":
    main()

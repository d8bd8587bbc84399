"""CTranslate2 on a converted folder, with 8-bit weights: prompts, and streams that decode.

python-with-ctranslate2 drive_ctranslate2.py FOLDER THREADS
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from answering import Values, answer, token_ids


def main() -> None:
    """Load and answer."""
    folder, threads = sys.argv[1], int(sys.argv[2])

    def start() -> tuple[Values, Callable[[Values], Values]]:
        import ctranslate2

        generator = ctranslate2.Generator(
            folder, device="cpu", compute_type="int8", inter_threads=1, intra_threads=threads
        )
        words = json.loads((Path(folder) / "vocabulary.json").read_text())
        return {"ready": f"ctranslate2 {ctranslate2.__version__}"}, Driver(generator, words).turn

    answer(start)


class Driver:
    """Its prompts are words of the vocabulary, not token ids."""

    def __init__(self, generator: Any, words: list[str]) -> None:
        self._generator = generator
        self._words = words
        self._number = 0
        self._rates: dict[tuple[int, int], float] = {}

    def turn(self, ask: Values) -> Values:
        """``do``: "work"."""
        if ask["do"] != "work":
            raise ValueError("no continuous batching here")
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
        self._number += 1
        return self._generate([self._prompt(tokens, self._number)], 1)

    def _decode(self, ask: Values) -> Values:
        """The context is read once and kept (``cache_static_prompt``); what one token takes is subtracted."""
        shape = (ask["streams"], ask["context"])
        shared = self._prompt(ask["context"] - 1, 100_000)
        last = [self._prompt(1, stream) for stream in range(ask["streams"])]
        tokens = max(4, min(48, int(self._rates.get(shape, 16.0) / ask["streams"] * ask["seconds"])))
        options = {"static_prompt": shared, "cache_static_prompt": True}
        alone = self._generate(last, 1, **options)
        if ask["turn"] < 0:
            alone = self._generate(last, 1, **options)  # the first one read the context
        seconds = self._generate(last, 1 + tokens, **options) - alone
        self._rates[shape] = ask["streams"] * tokens / seconds
        return {"rate": self._rates[shape]}

    def _prompt(self, tokens: int, seed: int) -> list[str]:
        return [self._words[number % len(self._words)] for number in token_ids(tokens, seed)]

    def _generate(self, prompts: list[list[str]], tokens: int, **options: Any) -> float:
        begin = time.perf_counter()
        self._generator.generate_batch(
            prompts, max_length=tokens, min_length=tokens, beam_size=1, include_prompt_in_result=False, end_token=[],
            **options,
        )  # fmt: skip
        return time.perf_counter() - begin


if __name__ == "__main__":
    main()

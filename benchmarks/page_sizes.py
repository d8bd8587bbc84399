"""What the size of a KV block costs and saves: speed, empty slots, and prompt tokens found in the prefix cache.

    python benchmarks/page_sizes.py --model M.gguf --rounds 3

Each size in turn, as often as asked: 48 prompts of 40 to 400 tokens, half of which begin with the same 150, 16 at a
time, 48 tokens of answer each. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

from tidemill.core.config import BLOCK_SIZES, EngineConfig, ModelConfig, SchedulerConfig
from tidemill.core.sampling import SamplingOptions
from tidemill.core.tokens import TokenRequest
from tidemill.engine.factory import build_loop

PROMPTS = 48
SHARED = 150
OUTPUT = 48
AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One size, one time."""

    tokens_per_second: float
    empty: float
    """Mean over the steps: part of the slots in held blocks that hold no token."""
    found: float
    """Part of the tokens that asked the cache which were in it."""


def requests() -> list[TokenRequest]:
    """The same ones for every size."""
    chance = random.Random(7)
    shared = [chance.randrange(1000, 30000) for _ in range(SHARED)]
    made = []
    for index in range(PROMPTS):
        length = chance.randint(40, 400)
        own = [chance.randrange(1000, 30000) for _ in range(length)]
        prompt = (shared + own)[: max(length, SHARED + 10)] if index % 2 else own
        options = SamplingOptions(temperature=0.0, max_tokens=OUTPUT, ignore_eos=True)
        made.append(TokenRequest(request_id=str(index), prompt=tuple(prompt), sampling=options))
    return made


def run(model: Path, block_size: int) -> Round:
    """Load, answer everything, and look at the pool after each step."""
    config = EngineConfig(
        model=ModelConfig(path=str(model), max_model_len=1024),
        scheduler=SchedulerConfig(max_running=AT_ONCE),
        block_size=block_size,
    )
    loop = build_loop(config)
    try:
        for request in requests():
            loop.add(request)
        empty = []
        begin = time.perf_counter()
        while loop.has_work:
            loop.step()
            empty.append(loop.stats().kv_fragmentation)
        seconds = time.perf_counter() - begin
        stats = loop.stats()
    finally:
        loop.close()
    return Round(
        tokens_per_second=stats.generation_tokens_total / seconds,
        empty=statistics.fmean(empty),
        found=stats.prefix_hit_tokens_total / max(1, stats.prefix_asked_tokens_total),
    )


def main() -> None:
    """Print a table and the line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rounds: dict[int, list[Round]] = {size: [] for size in BLOCK_SIZES}
    for _ in range(options.rounds):
        for size, done in rounds.items():
            done.append(run(options.model, size))
    print(f"{'tokens a block':>14} {'output tok/s':>13} {'empty slots':>12} {'found':>7}")
    rows = []
    for size, done in rounds.items():
        speed = statistics.median(one.tokens_per_second for one in done)
        print(f"{size:>14} {speed:>13.1f} {done[0].empty:>11.1%} {done[0].found:>7.1%}")
        rows.append({"block_size": size, "tokens_per_second": speed, "empty": done[0].empty, "found": done[0].found})
    print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()

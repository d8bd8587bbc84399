"""What the prefix cache costs where nothing is shared: prompts that are all different, with and without it, in turns.

Prints one line of JSON: tokens per second of both sides, and the ratio (with over without): its median over the pairs,
their middle half, and the range. The cache is as full as it gets, so that each new block puts an old one out.

    python benchmarks/prefix_bench.py MODEL.gguf --pairs 30
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time

from tidemill.core.config import EngineConfig, ModelConfig, SchedulerConfig
from tidemill.core.sampling import SamplingOptions
from tidemill.core.tokens import TokenRequest
from tidemill.engine.factory import build_loop
from tidemill.engine.loop import EngineLoop

WITHOUT = ("prefix-cache",)


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--pairs", type=int, default=30)
    args = parser.parse_args()
    config = EngineConfig(
        model=ModelConfig(path=args.model, max_model_len=2048), scheduler=SchedulerConfig(), kv_memory=2**28
    )
    loop = build_loop(config)
    numbers = random.Random(0)
    try:
        for _ in range(4):
            _turn(loop, args, numbers, ())
        pairs = []
        for pair in range(args.pairs):
            sides = {}
            for without in ((), WITHOUT) if pair % 2 else (WITHOUT, ()):
                sides[without] = _turn(loop, args, numbers, without)
            pairs.append((sides[()], sides[WITHOUT]))
    finally:
        loop.close()
    ratios = sorted(on / off for on, off in pairs)
    quarter = len(ratios) // 4
    print(
        json.dumps(
            {
                "with": round(statistics.median(on for on, _ in pairs), 1),
                "without": round(statistics.median(off for _, off in pairs), 1),
                "ratio": round(statistics.median(ratios), 4),
                "middle_half": [round(ratios[quarter], 4), round(ratios[-1 - quarter], 4)],
                "range": [round(ratios[0], 4), round(ratios[-1], 4)],
                "pairs": len(pairs),
            }
        )
    )


def _turn(loop: EngineLoop, args: argparse.Namespace, numbers: random.Random, without: tuple[str, ...]) -> float:
    """Tokens per second, prompts among them."""
    requests = [
        TokenRequest(
            request_id=f"{numbers.random()}",
            prompt=tuple(numbers.randrange(1000, 30000) for _ in range(args.prompt_tokens)),
            sampling=SamplingOptions(temperature=0.0, max_tokens=args.tokens, ignore_eos=True),
            without=without,
        )
        for _ in range(args.streams)
    ]
    began = time.perf_counter()
    for request in requests:
        loop.add(request)
    while loop.has_work:
        loop.step()
    return args.streams * (args.prompt_tokens + args.tokens) / (time.perf_counter() - began)


if __name__ == "__main__":
    main()

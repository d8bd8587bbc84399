"""What speculation brings: the same requests with and without, in turns, on one loaded model.

Loads: ``quote`` writes a table of its prompt again (edits, agents), ``free`` is prose from a sampled answer of its own.
Prints one line of JSON: tokens per second of both sides, and the ratio, medians of the turns, with their range.

    python benchmarks/speculation_bench.py MODEL.gguf --speculate ngram --load quote --streams 1
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import replace

from tidemill.core.config import EngineConfig, ExecutorConfig, ModelConfig, SchedulerConfig
from tidemill.core.sampling import SamplingOptions
from tidemill.core.tokens import TokenRequest
from tidemill.engine.factory import build_loop
from tidemill.engine.loop import EngineLoop
from tidemill.models.loading import load_text_source
from tidemill.scheduling.speculation_kinds import speculation_kinds, strategy_name
from tidemill.text.tokenizer import build_tokenizer

RECORDS = [f'{{"id": {7 * n % 97}, "name": "station {n}", "height": {n * 13 % 71}}}' for n in range(24)]
LOADS = {
    "quote": "Records:\n" + "\n".join(RECORDS) + "\n\nThe same records again:\n" + "\n".join(RECORDS[:2]) + "\n",
    "free": "Once upon a time, in a village by the sea, there was a miller who",
}


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--speculate", default="ngram")
    parser.add_argument("--speculate-tokens", type=int, default=8)
    parser.add_argument("--speculate-length", default="adaptive")
    parser.add_argument("--load", choices=sorted(LOADS), default="quote")
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--pairs", type=int, default=5)
    args = parser.parse_args()
    config = EngineConfig(
        model=ModelConfig(path=args.model, max_model_len=2048),
        executor=ExecutorConfig(),
        scheduler=SchedulerConfig(
            max_running=64,
            speculate=args.speculate,
            speculate_tokens=args.speculate_tokens,
            speculate_length=args.speculate_length,
        ),
    )
    prompt = build_tokenizer(load_text_source(args.model)).encode(LOADS[args.load])
    without = tuple(strategy_name(kind) for kind in speculation_kinds(args.speculate))
    loop = build_loop(config)
    try:
        requests = [
            TokenRequest(
                request_id=f"s{stream}",
                prompt=prompt,
                sampling=SamplingOptions(
                    temperature=0.0 if args.load == "quote" else 0.8,
                    seed=stream,
                    max_tokens=args.tokens,
                    ignore_eos=True,
                ),
            )
            for stream in range(args.streams)
        ]
        _print(args, loop, requests, without)
    finally:
        loop.close()


def _print(args: argparse.Namespace, loop: EngineLoop, requests: list[TokenRequest], without: tuple[str, ...]) -> None:
    turn(loop, requests)  # warm up: pages, and the controller's table
    pairs = []
    for pair in range(args.pairs):
        sides = {}
        for name in ("on", "off") if pair % 2 else ("off", "on"):
            sides[name] = turn(loop, [replace(one, without=() if name == "on" else without) for one in requests])
        assert sides["on"][1] == sides["off"][1], "answers differ"
        pairs.append((sides["on"][0], sides["off"][0]))
    ratios = [on / off for on, off in pairs]
    stats = loop.stats()
    print(
        json.dumps(
            {
                "load": args.load,
                "streams": args.streams,
                "speculate": args.speculate,
                "on": round(statistics.median(on for on, _ in pairs), 1),
                "off": round(statistics.median(off for _, off in pairs), 1),
                "ratio": round(statistics.median(ratios), 3),
                "range": [round(min(ratios), 3), round(max(ratios), 3)],
                "drafts": stats.drafts_total,
                "proposed": stats.draft_tokens_total,
                "accepted": stats.draft_accepted_tokens_total,
            }
        )
    )


def turn(loop: EngineLoop, requests: list[TokenRequest]) -> tuple[float, dict[tuple[str, int], list[int]]]:
    """Tokens per second from the first token on, and the answers."""
    for one in requests:
        loop.add(one)
    answers: dict[tuple[str, int], list[int]] = {}
    begin = first = 0.0
    while loop.has_work:
        for delta in loop.step():
            answers.setdefault((delta.request_id, delta.choice), []).extend(delta.tokens)
        if not begin and len(answers) == len(requests):
            begin, first = time.perf_counter(), sum(map(len, answers.values()))
    return (sum(map(len, answers.values())) - first) / (time.perf_counter() - begin), answers


if __name__ == "__main__":
    main()

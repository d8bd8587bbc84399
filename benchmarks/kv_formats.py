"""How far a KV cache of whole numbers moves the answers, and how fast it is, with a short context and with a long one.

    python benchmarks/kv_formats.py kl    --model M.gguf            mean KL to f16 around 10, 100 and 1,000 tokens
    python benchmarks/kv_formats.py speed --model M.gguf            tokens per second of single decoding steps

The distance is KL(f16 || format) in nats over all positions within a fifth of each place, in pieces of a text (by
default the pages in docs/), with exact numerics, so that nothing else is rounded. Speeds are those of Rig (tidemill
bench step), the formats in alternation; the figure is the median of the rounds' medians. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np

from tidemill.bench.rig import Rig
from tidemill.bench.work import Work
from tidemill.core.config import EngineConfig, ExecutorConfig, ModelConfig
from tidemill.executors.factory import make_executor
from tidemill.executors.protocol import KvPoolSpec
from tidemill.graph.kv_format import KvFormat
from tidemill.graph.passes.cost import kv_bytes_per_token
from tidemill.graph.passes.fuse import fuse
from tidemill.models.calibration import text_logits
from tidemill.models.loading import load_model
from tidemill.text.tokenizer import build_tokenizer

FORMATS = [KvFormat.F16, KvFormat.Q8_0, KvFormat.Q4_0]
PLACES = (10, 100, 1000)
PIECE = 1200
BLOCK = 64
DOCS = Path(__file__).parent.parent / "docs"


def log_softmax(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Rows of log-probabilities in float64."""
    rows = logits.astype(np.float64)
    rows -= rows.max(axis=-1, keepdims=True)
    shifted: np.ndarray[Any, Any] = rows - np.log(np.exp(rows).sum(axis=-1, keepdims=True))
    return shifted


def distances(path: str, text: str, pieces: int, threads: int) -> dict[str, Any]:
    """Mean KL by format and place."""
    model = load_model(ModelConfig(path=path))
    ids = build_tokenizer(model.text).encode(text)
    made = [ids[at : at + PIECE] for at in range(0, len(ids) - PIECE + 1, PIECE)][:pieces]
    executor = make_executor(fuse(model.graph), model.weights, ExecutorConfig(numerics="exact", threads=threads))
    blocks = -(-PIECE // BLOCK)
    pools = [KvPoolSpec(group=group.name, num_blocks=blocks, block_size=BLOCK) for group in model.graph.kv_groups]
    places = {place: np.arange(place * 4 // 5, min(place * 6 // 5, PIECE)) for place in PLACES}
    sums: dict[str, dict[int, list[float]]] = {kv: {place: [] for place in PLACES} for kv in FORMATS}
    for piece in made:
        exact: np.ndarray[Any, Any] | None = None
        for kv_format in FORMATS:
            executor.allocate_kv(pools, kv_format)
            logits = text_logits(executor, piece, [blocks] * len(pools), BLOCK)
            exact = logits if exact is None else exact
            for place, positions in places.items():
                p, q = log_softmax(exact[positions]), log_softmax(logits[positions])
                sums[kv_format][place] += (np.exp(p) * (p - q)).sum(axis=-1).tolist()
    executor.close()
    print(f"{model.name}: {len(made)} pieces of {PIECE} tokens, exact numerics")
    figures: dict[str, Any] = {}
    for kv_format in FORMATS[1:]:
        found = {place: float(np.mean(sums[kv_format][place])) for place in PLACES}
        figures[kv_format] = found
        print(f"  {kv_format}: " + ", ".join(f"{kl:.6f} at {place}" for place, kl in found.items()))
    return figures


def speeds(path: str, works: list[Work], rounds: int, seconds: float, threads: int) -> dict[str, Any]:
    """Tokens per second by format and work."""
    rigs = {}
    for kv_format in FORMATS:
        executor = ExecutorConfig(kv_format=kv_format.value, threads=threads)
        config = EngineConfig(model=ModelConfig(path=path), executor=executor, block_size=16)
        rigs[kv_format] = Rig(config, works, later=64)
    rates: dict[tuple[KvFormat, Work], list[float]] = {(kv, work): [] for kv in FORMATS for work in works}
    for _ in range(rounds):
        for work in works:
            for kv_format, rig in rigs.items():
                rates[kv_format, work].append(rig.measure(work, repeats=400, seconds=seconds).rate)
    figures: dict[str, Any] = {}
    for work in works:
        base = statistics.median(rates[KvFormat.F16, work])
        for kv_format, rig in rigs.items():
            found = rates[kv_format, work]
            figures[f"{kv_format} {work.streams}x{work.context}"] = statistics.median(found)
            print(
                f"  {work.streams:2} at {work.context:5}  {kv_format:5} {statistics.median(found):7.1f} tokens/s "
                f"({min(found):.1f}-{max(found):.1f})  {statistics.median(found) / base:.2f}x  "
                f"{kv_bytes_per_token(rig.graph, kv_format)} bytes per token"
            )
    for rig in rigs.values():
        rig.close()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["kl", "speed"])
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", type=Path, nargs="+", default=sorted(DOCS.glob("*.md")))
    parser.add_argument("--pieces", type=int, default=4)
    parser.add_argument("--decode", default="1x256,1x4096,4x4096", help="STREAMSxCONTEXT, several joined by commas")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    if args.what == "kl":
        text = "\n\n".join(path.read_text(encoding="utf-8") for path in args.text)
        print(json.dumps(distances(args.model, text, args.pieces, args.threads)))
    else:
        shapes = [tuple(map(int, one.split("x"))) for one in args.decode.split(",")]
        works = [Work(streams=streams, tokens=1, context=context) for streams, context in shapes]
        print(json.dumps(speeds(args.model, works, args.rounds, args.seconds, args.threads)))


if __name__ == "__main__":
    main()

"""Steps of one engine, without server or scheduler: prefill of 512 tokens, and decoding of one stream.

Prints one line of JSON with tokens per second, medians of ``--repeats``. To compare engines, run them in turns on the
same file, several times, and take medians of the ratios; two identical runs on a shared machine differ by 10-25 %.

    python benchmarks/step_bench.py tidemill --model M.gguf
    python-with-llama-cpp-python benchmarks/step_bench.py llamacpp --model M.gguf
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

PREFILL = 512
CONTEXT = 64
DECODE = 64

Evaluate = Callable[[Sequence[int], int], int]
"""Computes token ids at positions from ``start`` on and returns the greedy next token."""


def tidemill_engine(model: Path, threads: int) -> tuple[Evaluate, str]:
    """Our executor, driven by plans."""
    from tidemill.core.config import ExecutorConfig, ModelConfig
    from tidemill.core.step import PlanRow, RowOptions, SequenceId, StepPlan
    from tidemill.executors.factory import make_executor
    from tidemill.executors.protocol import KvPoolSpec
    from tidemill.graph.passes.fuse import fuse
    from tidemill.models.loading import load_model

    loaded = load_model(ModelConfig(path=str(model)))
    executor = make_executor(fuse(loaded.graph), loaded.weights, ExecutorConfig(threads=threads))
    blocks = list(range(64))
    executor.allocate_kv([KvPoolSpec(group=g.name, num_blocks=64, block_size=16) for g in loaded.graph.kv_groups])
    tables = tuple(blocks for _ in loaded.graph.kv_groups)

    def evaluate(tokens: Sequence[int], start: int) -> int:
        row = PlanRow(
            sequence=SequenceId(0),
            tokens=tokens,
            start=start,
            block_tables=tables,
            num_outputs=1,
            options=RowOptions(),
        )
        executor.submit(StepPlan(step=0, rows=(row,)))
        return executor.collect().rows[0].tokens[0]

    return evaluate, executor.description


def llamacpp_engine(model: Path, threads: int) -> tuple[Evaluate, str]:
    """llama.cpp through its Python binding; logits of the last token only, flash attention on."""
    import llama_cpp

    engine = llama_cpp.Llama(
        str(model), n_ctx=1024, n_batch=512, n_ubatch=512, n_threads=threads, n_threads_batch=threads,
        flash_attn=True, verbose=False,
    )  # fmt: skip

    def evaluate(tokens: Sequence[int], start: int) -> int:
        engine.n_tokens = start
        engine.eval(tokens)
        return int(engine.sample(temp=0.0))

    return evaluate, f"llama-cpp-python {llama_cpp.__version__}, {threads} threads"


def measure(evaluate: Evaluate, repeats: int) -> dict[str, float]:
    """Tokens per second, medians."""
    prompt = [1 + (i * i * 7 + i) % 40_000 for i in range(PREFILL)]
    prefill, decode = [], []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        evaluate(prompt, 0)
        prefill.append(PREFILL / (time.perf_counter() - begin))
        token = evaluate(prompt[:CONTEXT], 0)
        begin = time.perf_counter()
        for step in range(DECODE):
            token = evaluate([token], CONTEXT + step)
        decode.append(DECODE / (time.perf_counter() - begin))
    # The first round warms caches and memory up.
    return {"prefill_512": statistics.median(prefill[1:]), "decode_1": statistics.median(decode[1:])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=["tidemill", "llamacpp"])
    parser.add_argument("--model", type=Path, required=True, help="a GGUF file")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    make = tidemill_engine if args.engine == "tidemill" else llamacpp_engine
    evaluate, description = make(args.model, args.threads)
    figures = {name: round(value, 1) for name, value in measure(evaluate, args.repeats).items()}
    print(json.dumps({"engine": description, "model": args.model.name, **figures}))


if __name__ == "__main__":
    main()

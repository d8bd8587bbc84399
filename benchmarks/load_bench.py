"""Loading a model and decoding with it: packed anew, mapped from the packed cache, and mapped without huge pages.

    python benchmarks/random_model.py /tmp/one.gguf --format q4_0 --bytes 1000000000
    python benchmarks/load_bench.py /tmp/one.gguf --repeats 5

Each run is a process of its own, with the file in the page cache; the ways take turns. Seconds count from the opened
file to ready weights (imports are not in them); ``cpu`` is processor time of the load, which other work on the machine
changes less; ``decode`` is tokens per second of one sequence; ``huge`` is the share of the weights on huge pages. The
last line is JSON, medians.
"""

from __future__ import annotations

import argparse
import json
import mmap
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WAYS = ("packed", "mapped", "mapped-4k")
TOKENS = 24


def once(path: Path, way: str, cache: str, threads: int) -> dict[str, float]:
    """One load and some tokens, in this process."""
    from tidemill.core.config import ExecutorConfig, ModelConfig
    from tidemill.core.step import PlanRow, RowOptions, SequenceId, StepPlan
    from tidemill.executors.native.executor import NativeExecutor
    from tidemill.executors.protocol import KvPoolSpec
    from tidemill.graph.passes.fuse import fuse
    from tidemill.models.loading import load_model

    if way == "mapped-4k":
        mmap.MADV_HUGEPAGE = mmap.MADV_NOHUGEPAGE  # what the cache asks of its map
    config = ExecutorConfig(threads=threads, cache_dir=cache, packed_cache="off" if way == "packed" else "on")
    begin, cpu = time.perf_counter(), time.process_time()
    model = load_model(ModelConfig(path=str(path)))
    executor = NativeExecutor(fuse(model.graph), model.weights, config)
    found = {"seconds": time.perf_counter() - begin, "cpu": time.process_time() - cpu}
    found["cached"] = float(executor.cached_bytes > 0)
    executor.allocate_kv([KvPoolSpec(group=g.name, num_blocks=8, block_size=16) for g in model.graph.kv_groups])
    steps = []
    for position in range(TOKENS):
        row = PlanRow(
            sequence=SequenceId(0), tokens=[position + 1], start=position, num_outputs=1, options=RowOptions(),
            block_tables=tuple(list(range(8)) for _ in model.graph.kv_groups),
        )  # fmt: skip
        executor.submit(StepPlan(step=position, rows=(row,)))
        steps.append(executor.collect().seconds)
    found["decode"] = 1 / statistics.median(steps[2:])
    found["huge"] = huge_bytes() / executor.packed_bytes
    executor.close()
    return found


def huge_bytes() -> int:
    """Memory of this process on huge pages, anonymous and of files."""
    smaps = Path("/proc/self/smaps_rollup").read_text()
    return sum(1024 * int(size) for size in re.findall(r"^(?:AnonHugePages|FilePmdMapped): +(\d+) kB", smaps, re.M))


def main() -> None:
    """Take turns, and print medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--way", choices=WAYS, help="one run in this process (the benchmark's own use)")
    parser.add_argument("--cache", help="the cache folder (the benchmark's own use)")
    args = parser.parse_args()
    if args.way:
        print(json.dumps(once(args.model, args.way, args.cache, args.threads)))
        return
    with tempfile.TemporaryDirectory(dir=args.model.parent) as cache:
        runs: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
        for repeat in range(args.repeats + 1):
            for way in WAYS:
                command = [sys.executable, __file__, str(args.model), "--way", way, "--cache", f"{cache}/c"]
                command += ["--threads", str(args.threads)]
                done = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
                print(json.dumps({"way": way, **{name: round(value, 3) for name, value in done.items()}}), flush=True)
                if repeat:  # the first round fills the page cache and the packed cache
                    runs[way].append(done)
    names = ("seconds", "cpu", "decode", "huge")
    medians = {way: {n: round(statistics.median(run[n] for run in runs[way]), 3) for n in names} for way in WAYS}
    print(json.dumps({"model": args.model.name, "bytes": args.model.stat().st_size, **medians}))


if __name__ == "__main__":
    main()

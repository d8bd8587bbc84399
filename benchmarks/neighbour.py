"""How much of its speed decoding keeps while another process takes a processor.

    python benchmarks/neighbour.py --model M.gguf

One stream decodes alone and beside a process that does nothing but count, in turns; then alone on one thread less: what
would be left if the neighbour had a processor to itself and nobody ever waited for it. Rates are steps over the time of
a whole turn, so stalls count. The neighbour ends with its turn, and by itself if this script is killed.

The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidemill.bench.rig import Rig
from tidemill.bench.work import Work, decode_work
from tidemill.core.config import EngineConfig, ExecutorConfig, ModelConfig
from tidemill.core.machine import usable_cpus

LATER = 64
COUNT = "import sys, time\nend = time.monotonic() + float(sys.argv[1])\nwhile time.monotonic() < end: pass"


@contextmanager
def neighbour(seconds: float) -> Iterator[subprocess.Popen[bytes]]:
    """A process that takes a processor, for so long at most."""
    child = subprocess.Popen([sys.executable, "-c", COUNT, str(seconds)])
    try:
        time.sleep(0.2)  # it has to start
        yield child
    finally:
        child.terminate()
        child.wait()


def processor_seconds(pid: int) -> float:
    """What a process has used so far, in user mode and in the system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rate(rig: Rig, work: Work, seconds: float) -> float:
    """Tokens per second over a turn."""
    begin = time.perf_counter()
    steps = 0
    while time.perf_counter() - begin < seconds:
        rig.step(work, steps % LATER)
        steps += 1
    return steps * work.step_tokens / (time.perf_counter() - begin)


def make_rig(model: Path, work: Work, threads: int) -> Rig:
    """A model, warmed up."""
    config = EngineConfig(model=ModelConfig(path=str(model)), executor=ExecutorConfig(threads=threads))
    rig = Rig(config, [work], later=LATER)
    for number in range(20):
        rig.step(work, number)
    return rig


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=usable_cpus(), help="of the engine; all processors by default")
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5, help="of a turn")
    options = parser.parse_args()
    work = decode_work(options.streams, options.context)

    alone: list[float] = []
    beside: list[float] = []
    taken: list[float] = []
    rig = make_rig(options.model, work, options.threads)
    try:
        for _ in range(options.rounds):
            alone.append(rate(rig, work, options.seconds))
            with neighbour(options.seconds + 5) as child:
                used, begin = processor_seconds(child.pid), time.perf_counter()
                beside.append(rate(rig, work, options.seconds))
                taken.append((processor_seconds(child.pid) - used) / (time.perf_counter() - begin))
    finally:
        rig.close()
    fewer: list[float] = []
    if options.threads > 1:
        rig = make_rig(options.model, work, options.threads - 1)
        try:
            fewer = [rate(rig, work, options.seconds) for _ in range(options.rounds)]
        finally:
            rig.close()

    figures = {"alone": alone, "beside": beside, "one thread less, alone": fewer}
    for name, rates in figures.items():
        if rates:
            print(f"{name:24s} {statistics.median(rates):8.1f} tokens/s  ({min(rates):.1f} to {max(rates):.1f})")
    kept = statistics.median(beside) / statistics.median(alone)
    print(f"kept {kept:.0%} while the neighbour used {statistics.median(taken):.0%} of a processor")
    print(
        json.dumps(
            {
                "bench": "neighbour",
                "work": work.name,
                "threads": options.threads,
                "kept": round(kept, 3),
                "neighbour": round(statistics.median(taken), 3),
                "rates": {name: [round(one, 1) for one in rates] for name, rates in figures.items()},
            }
        )
    )


if __name__ == "__main__":
    main()

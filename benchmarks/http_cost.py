"""What HTTP costs: tokens per second of 16 streams over HTTP beside those of the engine alone, in turns.

    python benchmarks/http_cost.py                    the default model, 16 streams, 5 rounds
    python benchmarks/http_cost.py --streams 1 --tokens 512

Three processes share the machine in a round over HTTP: this client, the server and its engine; the processor seconds of
each are given per 1000 tokens. The engine alone is the same loop in a process of its own, which does nothing but steps.
Medians; the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import psutil

from tidemill.http.client import HttpClient

sys.path.insert(0, str(Path(__file__).parent))
from serve_bench import default_model, default_server  # the benchmarks are scripts beside each other

PROMPT: Final = 32
HEADERS: Final = {"Content-Type": "application/json"}


class Count:
    """Events of one stream; nothing of them is read."""

    def __init__(self) -> None:
        self.events = 0

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """The status."""
        assert status == 200, (status, headers)

    def body(self, data: bytes) -> bool:
        """Some of the answer."""
        self.events += data.count(b"data: {")
        return False


def prompt(number: int) -> list[int]:
    """Token ids, others for each stream."""
    return [10 + (number * 31 + place * 7) % 40_000 for place in range(PROMPT)]


async def over_http(base: str, streams: int, tokens: int, seed: int) -> float:
    """Tokens per second of one round, from the first request sent to the last answer's end."""
    client = HttpClient(base)
    shape = {"max_tokens": tokens, "ignore_eos": True, "stream": True, "temperature": 1.0}
    bodies = [json.dumps({"prompt": prompt(seed + n), "seed": seed + n, **shape}).encode() for n in range(streams)]
    counts = [Count() for _ in range(streams)]
    begin = time.perf_counter()
    await asyncio.gather(
        *(
            client.exchange(client.request("/completions", HEADERS, body), count)
            for body, count in zip(bodies, counts, strict=True)
        )
    )
    seconds = time.perf_counter() - begin
    await client.close()
    assert all(count.events > tokens / 2 for count in counts)
    return streams * tokens / seconds


def engine_alone(model: str, streams: int, tokens: int) -> None:
    """The child: a round for each seed that comes, its tokens per second and processor seconds as JSON."""
    from tidemill.core.config import EngineConfig, ModelConfig
    from tidemill.core.sampling import SamplingOptions
    from tidemill.core.tokens import TokenRequest
    from tidemill.engine.factory import build_loop

    loop = build_loop(EngineConfig(model=ModelConfig(path=model)))
    print("ready", flush=True)
    for line in sys.stdin:
        seed = int(line)
        begin, cpu = time.perf_counter(), time.process_time()
        for n in range(streams):
            options = SamplingOptions(temperature=1.0, max_tokens=tokens, ignore_eos=True, seed=seed + n)
            loop.add(TokenRequest(request_id=str(n), prompt=tuple(prompt(seed + n)), sampling=options))
        while loop.has_work:
            loop.step()
        seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
        print(json.dumps({"rate": streams * tokens / seconds, "cpu": cpu}), flush=True)


class Alone:
    """The engine's process."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, __file__, "--child", *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._line()

    def round(self, seed: int) -> dict[str, float]:
        """One."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seed}\n")
        self._process.stdin.flush()
        found: dict[str, float] = json.loads(self._line())
        return found

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


def seconds_of(process: psutil.Process) -> float:
    """Processor time so far."""
    return float(sum(process.cpu_times()[:2]))


def measure(base: str, alone: Alone, server: psutil.Process, args: argparse.Namespace) -> dict[str, Any]:
    """All rounds; the first of each is not counted."""
    (engine,) = server.children()
    rates: dict[str, list[float]] = {"engine": [], "http": []}
    cpus: dict[str, list[float]] = {"engine alone": [], "client": [], "server": [], "its engine": []}
    thousands = args.streams * args.tokens / 1000
    for number in range(args.rounds + 1):
        found = alone.round(1000 * number)
        before = time.process_time(), seconds_of(server), seconds_of(engine)
        rate = asyncio.run(over_http(base, args.streams, args.tokens, 1000 * number))
        after = time.process_time(), seconds_of(server), seconds_of(engine)
        if number == 0:
            continue
        rates["engine"].append(found["rate"])
        rates["http"].append(rate)
        spent = [found["cpu"], *(b - a for a, b in zip(before, after, strict=True))]
        for name, seconds in zip(cpus, spent, strict=True):
            cpus[name].append(seconds / thousands)
        print(
            f"engine {found['rate']:7.0f}   http {rate:7.0f}   loss {100 * (1 - rate / found['rate']):5.1f} %",
            flush=True,
        )
    medians = {name: statistics.median(values) for name, values in rates.items()}
    losses = [1 - http / own for http, own in zip(rates["http"], rates["engine"], strict=True)]
    return {
        "streams": args.streams,
        "tokens_per_s": {name: round(value, 1) for name, value in medians.items()},
        "loss_percent": round(100 * statistics.median(losses), 1),
        "loss_percent_range": [round(100 * min(losses), 1), round(100 * max(losses), 1)],
        "cpu_ms_per_1000_tokens": {name: round(1e3 * statistics.median(values)) for name, values in cpus.items()},
    }


def main() -> None:
    """Measure, and print a table and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--child", help="the model of the engine's process (the benchmark's own use)")
    args = parser.parse_args()
    if args.child:
        engine_alone(args.child, args.streams, args.tokens)
        return
    alone = Alone(default_model(), "--streams", str(args.streams), "--tokens", str(args.tokens))
    try:
        with default_server("") as base:
            server = next(
                child for child in psutil.Process().children() if any("serve" in part for part in child.cmdline())
            )
            found = measure(base, alone, server, args)
    finally:
        alone.close()
    print(json.dumps(found))


if __name__ == "__main__":
    main()

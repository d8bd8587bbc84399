"""Twenty times the rate that the engine sustains, for two minutes: who is answered, how soon the others are told,
whether memory stays where it was, and how long until all is as before.

    python benchmarks/overload.py                      the default model, 120 s
    python benchmarks/overload.py --seconds 20 --factor 10 --max-wait 2
    python benchmarks/overload.py --serve-options "--kv-memory 256MiB"
                                                       a pool that is soon full: what grows behind that is a leak

First one caller at a time (``alone``), then as many as run at once for some seconds: the requests that they complete
per second are the rate that can be sustained. Then requests come at even intervals, answered or not, from one process.
The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from tidemill.http.client import Broken, HttpClient

sys.path.insert(0, str(Path(__file__).parent))
from serve_bench import default_server  # the benchmarks are scripts beside each other

PROMPT_TOKENS: Final = 64
OUTPUT_TOKENS: Final = 32
CALLERS: Final = 16
WINDOW_SECONDS: Final = 15.0
HEADERS: Final = {"Content-Type": "application/json"}


@dataclass(slots=True)
class Answer:
    """What came back of one request; times are seconds from when it was sent."""

    began: float
    status: int = 0
    retry_after: str = ""
    first: float = 0.0
    """To the first token, or to the end of a refusal."""
    whole: bool = False
    broken: str = ""
    _seen: int = field(default=0, repr=False)

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """The status."""
        self.status, self.retry_after = status, headers.get("retry-after", "")
        if status != 200:
            self.first = time.monotonic() - self.began

    def body(self, data: bytes) -> bool:
        """Some of the answer: its first event is the first token's."""
        if self.status == 200 and not self.first and b'"text":"' in data:
            self.first = time.monotonic() - self.began
        self.whole = self.whole or b"data: [DONE]" in data
        if b'"error"' in data and self.status == 200:
            self.broken = data.decode(errors="replace")[:200]
        return False


class Load:
    """Requests that have the same length and different prompts."""

    def __init__(self, base: str) -> None:
        self.client = HttpClient(base)
        self._number = 0

    async def ask(self) -> Answer:
        """One request."""
        self._number += 1
        prompt = [10 + (self._number * 31 + place * 7) % 40_000 for place in range(PROMPT_TOKENS)]
        body = {"prompt": prompt, "max_tokens": OUTPUT_TOKENS, "ignore_eos": True, "stream": True, "temperature": 1}
        request = self.client.request("/completions", HEADERS, json.dumps(body).encode())
        answer = Answer(began=time.monotonic())
        try:
            await self.client.exchange(request, answer)
        except (OSError, Broken) as error:
            answer.broken = f"{type(error).__name__}: {error}"
        return answer

    async def callers(self, count: int, seconds: float) -> list[Answer]:
        """So many callers, each asking again when it is answered."""
        end = time.monotonic() + seconds
        found: list[Answer] = []

        async def one() -> None:
            while time.monotonic() < end:
                found.append(await self.ask())

        await asyncio.gather(*(one() for _ in range(count)))
        return found

    async def at_rate(self, rate: float, seconds: float) -> list[Answer]:
        """Requests at even intervals, whatever becomes of those before."""
        tasks: list[asyncio.Task[Answer]] = []
        begin = time.monotonic()
        while (elapsed := time.monotonic() - begin) < seconds:
            tasks += [asyncio.create_task(self.ask()) for _ in range(len(tasks), int(elapsed * rate))]
            await asyncio.sleep(0.005)
        return await asyncio.gather(*tasks)


class Memory:
    """Resident bytes of the server and its engine, once a second."""

    def __init__(self, port: int) -> None:
        self._processes = _listening(port)
        self.samples: list[tuple[float, tuple[int, ...]]] = []
        self._task = asyncio.create_task(self._watch())

    def now(self) -> tuple[int, ...]:
        """Bytes of each process, the server first."""
        return tuple(process.memory_info().rss for process in self._processes)

    def seconds(self) -> float:
        """Processor time so far."""
        return sum(sum(process.cpu_times()[:2]) for process in self._processes)

    async def _watch(self) -> None:
        while True:
            self.samples.append((time.monotonic(), self.now()))
            await asyncio.sleep(1)

    def slope(self, begin: float, end: float) -> float:
        """Bytes per second, by least squares, of the samples of a time."""
        samples = [(at, sum(sizes)) for at, sizes in self.samples if begin <= at <= end]
        return statistics.linear_regression(*zip(*samples, strict=True)).slope if len(samples) > 2 else 0.0

    def windows(self, begin: float, end: float) -> list[list[float]]:
        """MiB of each process in each window of a time, the median of its samples."""
        found: dict[int, list[tuple[int, ...]]] = {}
        for at, sizes in self.samples:
            if begin <= at < end:
                found.setdefault(int((at - begin) / WINDOW_SECONDS), []).append(sizes)
        return [
            [round(statistics.median(sizes) / 2**20, 1) for sizes in zip(*one, strict=True)] for one in found.values()
        ]

    def close(self) -> None:
        """End."""
        self._task.cancel()


def _listening(port: int) -> list[psutil.Process]:
    for child in psutil.Process().children():
        if any(one.laddr.port == port for one in child.net_connections("tcp") if one.status == psutil.CONN_LISTEN):
            return [child, *child.children(recursive=True)]
    raise RuntimeError(f"nobody listens on port {port}")


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which a share of them lies; 0 without any."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0


def spread(values: Sequence[float]) -> dict[str, float]:
    """Seconds."""
    shares = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return {name: round(percentile(values, share), 4) for name, share in shares.items()}


async def measure(base: str, seconds: float, factor: float, warm: float) -> dict[str, Any]:
    """All phases."""
    load, memory = Load(base), Memory(int(base.rsplit(":", 1)[1].partition("/")[0]))
    await load.callers(2, 1.0)
    alone = statistics.median([(await load.ask()).first for _ in range(5)])
    began = time.monotonic()
    closed = await load.callers(CALLERS, warm)
    sustained = len(closed) / (time.monotonic() - began)
    before, begin, busy, own = memory.now(), time.monotonic(), memory.seconds(), time.process_time()
    answers = await load.at_rate(factor * sustained, seconds)
    end = time.monotonic()
    after, busy, own = memory.now(), memory.seconds() - busy, time.process_time() - own
    recovered, probes = 0.0, []
    while not probes or probes[-1].status != 200 or probes[-1].first > 2 * alone + 0.05:
        probes.append(await load.ask())
        recovered = time.monotonic() - end
        if recovered > 60:
            break
    memory.close()
    await load.client.close()
    accepted = [one for one in answers if one.status == 200]
    refused = [one for one in answers if one.status in (429, 503)]
    firsts = [one.first for one in accepted if one.first]
    return {
        "sustained_per_s": round(sustained, 2),
        "alone_ms": round(1e3 * alone, 1),
        "sent": len(answers),
        "sent_per_s": round(len(answers) / seconds, 1),
        "statuses": dict(Counter(one.status for one in answers)),
        "accepted_whole_per_s": round(sum(one.whole for one in accepted) / (end - begin), 2),
        "accepted_not_whole": sum(not one.whole for one in accepted),
        "broken": dict(Counter(one.broken for one in answers if one.broken)),
        "refused_without_retry_after": sum(not one.retry_after for one in refused),
        "ttft_s": spread(firsts),
        "refused_s": spread([one.first for one in refused]),
        "rss_mib": {"before": sum(before) >> 20, "after": sum(after) >> 20},
        "rss_windows_mib": memory.windows(begin, end),
        "rss_slope_kib_per_s": round(memory.slope(begin + (end - begin) / 2, end) / 1024, 1),
        "recovered_s": round(recovered, 2),
        "first_probe": {"status": probes[0].status, "ttft_ms": round(1e3 * probes[0].first, 1)},
        "last_probe_ttft_ms": round(1e3 * probes[-1].first, 1),
        "server_cpus": round(busy / (end - begin), 2),
        "client_cpus": round(own / (end - begin), 2),
    }  # fmt: skip


def main() -> None:
    """Measure, and print a table and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--factor", type=float, default=20.0)
    parser.add_argument("--max-wait", type=float, default=5.0, help="the server's max_wait_seconds")
    parser.add_argument("--warm", type=float, default=10.0, help="seconds in which the sustained rate is measured")
    parser.add_argument("--serve-options", default="", help="further options of the server, as one text")
    args = parser.parse_args()
    with default_server(f"--max-wait-seconds {args.max_wait} {args.serve_options}") as base:
        found = asyncio.run(measure(base, args.seconds, args.factor, args.warm))
    for name, value in found.items():
        print(f"{name:28s} {value}")
    print(json.dumps({"seconds": args.seconds, "factor": args.factor, "max_wait": args.max_wait, **found}))


if __name__ == "__main__":
    main()

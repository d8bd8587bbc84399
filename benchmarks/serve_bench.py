"""Closed-loop load on an OpenAI-compatible server: N callers, each sends its next request when its answer ends.

    python benchmarks/serve_bench.py                       starts a server with the default model, loads it, stops it
    python benchmarks/serve_bench.py --url http://host:port/v1 --model NAME
    python benchmarks/serve_bench.py --prompt-tokens 576 --shared-tokens 512 --concurrency 16
                                                           completions of prompts that begin alike
    ... --serve-options "--prefix-cache off"               the server it starts with other settings

Prints time to first token (TTFT), inter-token latency (ITL) and throughput. Tokens are counted from ``usage``, never
from chunks. Failed requests are shown and kept out of the latencies. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import platform
import random
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

PROMPT = "Explain in plain words how a tide mill works, and why it can grind at a steady pace. Part {number}."
IDS = (1000, 30000)
"""Made-up prompts have token ids of this range, which most vocabularies have."""


@dataclass(slots=True, kw_only=True)
class Answer:
    """What one request showed, in seconds on this process's clock."""

    began: float
    first: float | None = None
    last: float | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """Of the prompt's, as the server says."""
    error: str | None = None

    @property
    def token_gap(self) -> float | None:
        """Mean time between tokens: (last - first) / (tokens - 1)."""
        if self.first is None or self.last is None or self.output_tokens < 2:
            return None
        return (self.last - self.first) / (self.output_tokens - 1)


@dataclass(slots=True, kw_only=True)
class Load:
    """A run: what was asked and what came back."""

    url: str
    model: str
    requests: int
    concurrency: int
    max_tokens: int
    prompt_tokens: int = 0
    """Tokens of each prompt, made up; 0: chats with a question in words."""
    shared_tokens: int = 0
    """How many of these all prompts begin with."""
    first_number: int = 0
    """The number of the first prompt; prompts with other numbers differ."""
    api_key: str | None = None
    answers: list[Answer] = field(default_factory=list)
    seconds: float = 0.0


async def ask(session: aiohttp.ClientSession, load: Load, number: int) -> Answer:
    """Send one streamed request and watch its answer."""
    path, asked = question(load, number)
    body = {
        **asked,
        "model": load.model,
        "max_tokens": load.max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    answer = Answer(began=time.perf_counter())
    try:
        async with session.post(f"{load.url}/{path}", json=body) as response:
            if response.status != 200:
                answer.error = f"{response.status}: {(await response.text())[:200]}"
                return answer
            async for line in response.content:
                _read_event(line, answer)
    except (aiohttp.ClientError, TimeoutError) as error:
        answer.error = f"{type(error).__name__}: {error}"
    return answer


def question(load: Load, number: int) -> tuple[str, dict[str, object]]:
    """Route and prompt of one request. Prompts of made-up token ids have exactly the length asked for."""
    if not load.prompt_tokens:
        return "chat/completions", {"messages": [{"role": "user", "content": PROMPT.format(number=number)}]}
    shared, own = random.Random("shared"), random.Random(load.first_number + number)
    ids = [shared.randrange(*IDS) for _ in range(load.shared_tokens)]
    ids += [own.randrange(*IDS) for _ in range(load.prompt_tokens - load.shared_tokens)]
    return "completions", {"prompt": ids, "ignore_eos": True}


def _read_event(line: bytes, answer: Answer) -> None:
    if not line.startswith(b"data: ") or line.strip() == b"data: [DONE]":
        return
    event = json.loads(line[6:])
    if "error" in event:
        answer.error = event["error"]["message"]
    if any(choice.get("text") or choice.get("delta", {}).get("content") for choice in event.get("choices", ())):
        answer.last = time.perf_counter()
        answer.first = answer.first or answer.last
    if usage := event.get("usage"):
        answer.prompt_tokens, answer.output_tokens = usage["prompt_tokens"], usage["completion_tokens"]
        answer.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)


async def run(load: Load) -> None:
    """Keep ``concurrency`` callers busy until ``requests`` answers are in."""
    headers = {"Authorization": f"Bearer {load.api_key}"} if load.api_key else {}
    numbers = iter(range(load.requests))

    async def caller(session: aiohttp.ClientSession) -> None:
        for number in numbers:
            load.answers.append(await ask(session, load, number))

    timeout = aiohttp.ClientTimeout(total=600)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout, connector=connector) as session:
        start = time.perf_counter()
        await asyncio.gather(*(caller(session) for _ in range(load.concurrency)))
        load.seconds = time.perf_counter() - start


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value with at least this share of all values at or below it; None of no values."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def report(load: Load) -> dict[str, object]:
    """The figures of a run; times in milliseconds."""
    good = [answer for answer in load.answers if answer.error is None]
    first = [1e3 * (answer.first - answer.began) for answer in good if answer.first is not None]
    gaps = [1e3 * gap for answer in good if (gap := answer.token_gap) is not None]
    output = sum(answer.output_tokens for answer in good)
    return {
        "model": load.model,
        "requests": load.requests,
        "concurrency": load.concurrency,
        "max_tokens": load.max_tokens,
        "failed": len(load.answers) - len(good),
        "seconds": round(load.seconds, 3),
        "output_tokens": output,
        "prompt_tokens": sum(answer.prompt_tokens for answer in good),
        "cached_tokens": sum(answer.cached_tokens for answer in good),
        "most_cached_tokens": max(0, len(good) - 1) * load.shared_tokens,
        "output_tokens_per_second": round(output / load.seconds, 2) if load.seconds else None,
        "ttft_ms": _spread(first),
        "itl_ms": _spread(gaps),
        "machine": f"{platform.machine()}, {os.cpu_count()} processors",
    }


def _spread(values: Sequence[float]) -> dict[str, float | int | None]:
    def rounded(share: float) -> float | None:
        value = percentile(values, share)
        return None if value is None else round(value, 2)

    return {"samples": len(values), "p50": rounded(0.5), "p90": rounded(0.9), "p99": rounded(0.99)}


@contextmanager
def default_server(options: str) -> Iterator[str]:
    """A server with the default model and these options on a free port; its base URL. It ends with the block."""
    finder = Path(__file__).parent.parent / "scripts" / "default_model.py"
    model = subprocess.run([sys.executable, finder], check=True, capture_output=True, text=True).stdout.strip()
    command = [sys.executable, "-m", "tidemill.cli", "serve", model, "--port", "0", "--name", "default"]
    command += shlex.split(options)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield _wait_for_address(process)
    finally:
        process.terminate()
        process.wait(timeout=60)


def _wait_for_address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"http://[\w.:\[\]]+/v1", line):
            return found[0]
    raise SystemExit(f"the server ended with exit code {process.wait()} before it was ready")


def main() -> int:
    """Load a server and print what it did; 1 if a request failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="base URL ending in /v1; default: start a server")
    parser.add_argument("--model", default="default", help="name of the model in requests")
    parser.add_argument("--api-key", default=os.environ.get("OPENAI_API_KEY"))
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--prompt-tokens", type=int, default=0, help="prompts of so many made-up tokens; 0: in words")
    parser.add_argument("--shared-tokens", type=int, default=0, help="how many of them all prompts begin with")
    parser.add_argument("--serve-options", default="", help="options of the server that is started, as one text")
    options = vars(parser.parse_args())
    serve_options = options.pop("serve_options")
    if options["shared_tokens"] > options["prompt_tokens"]:
        parser.error("--shared-tokens must be at most --prompt-tokens")
    if options["url"]:
        load = Load(**options)
        asyncio.run(run(load))
    else:
        with default_server(serve_options) as options["url"]:
            load = Load(**options)
            asyncio.run(run(load))
    for message in {answer.error for answer in load.answers if answer.error}:
        print(f"failed: {message}", file=sys.stderr)
    figures = report(load)
    for name, value in figures.items():
        print(f"{name:26} {value}")
    print(json.dumps(figures))
    return 1 if figures["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())

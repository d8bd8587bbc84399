"""Callers in a closed loop on a server: each sends its next request when its answer has ended.

Prompts are token ids of exactly the length asked for, which llama-server takes too.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import dataclass, field

import aiohttp

__all__ = ["Load", "question", "run"]

IDS = (1000, 30000)
"""Made-up prompts have token ids of this range, which most vocabularies have."""


@dataclass(slots=True, kw_only=True)
class Answer:
    """What one request showed, in seconds on this process's clock."""

    began: float
    first: float | None = None
    output_tokens: int = 0
    error: str | None = None


@dataclass(slots=True, kw_only=True)
class Load:
    """A run: what was asked and what came back."""

    url: str
    model: str
    requests: int
    concurrency: int
    max_tokens: int
    prompt_tokens: int
    """Tokens of each prompt, made up."""
    shared_tokens: int = 0
    """How many of these all prompts begin with."""
    first_number: int = 0
    """The number of the first prompt: loads with other numbers have other prompts, and what they share is other too."""
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
    shared, own = random.Random(f"shared {load.first_number}"), random.Random(load.first_number + number)
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
        answer.first = answer.first or time.perf_counter()
    if usage := event.get("usage"):
        answer.output_tokens = usage["completion_tokens"]


async def run(load: Load) -> None:
    """Keep ``concurrency`` callers busy until ``requests`` answers are in."""
    numbers = iter(range(load.requests))

    async def caller(session: aiohttp.ClientSession) -> None:
        for number in numbers:
            load.answers.append(await ask(session, load, number))

    timeout = aiohttp.ClientTimeout(total=600)
    # A connection for each request: some servers close those that are kept, at times just when one is used again.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        start = time.perf_counter()
        await asyncio.gather(*(caller(session) for _ in range(load.concurrency)))
        load.seconds = time.perf_counter() - start

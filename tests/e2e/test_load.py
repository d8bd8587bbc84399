"""Thirty-two clients at once, a third of which hang up: every whole answer is the one computed alone."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.server import Server, serving

pytestmark = [pytest.mark.model]

CLIENTS = 32
TOPICS = [
    "tides", "bread", "the moon", "a lighthouse", "prime numbers", "rust", "a list in Python", "Tokyo", "salt",
    "honest accounting", "rivers", "an old clock", "glass", "the letter Q", "bees", "a queue",
]  # fmt: skip
STYLES: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1, "seed": 11},
    {"temperature": 0.8, "seed": 5, "top_p": 0.9, "frequency_penalty": 0.5},
    {"temperature": 0, "stop": [".", "\n\n"]},
    {"temperature": 0, "extra_body": {"repetition_penalty": 1.3}},
    {"temperature": 1.2, "seed": 3, "n": 2, "extra_body": {"min_p": 0.1, "top_k": 50}},
]

Key = tuple[str, int]


def arguments(key: Key) -> dict[str, Any]:
    """One of the requests of the load: some prompts are short, some long enough to be cut into chunks."""
    topic, style = key
    padding = "Consider it carefully. " * (40 if style % 2 else 0)
    return {
        "model": "m",
        "messages": [{"role": "user", "content": f"{padding}Tell me about {topic}."}],
        "max_tokens": 24 + 8 * style,
        **STYLES[style],
    }


async def whole(client: openai.AsyncOpenAI, key: Key, *, leave_after: int | None = None) -> dict[int, tuple[str, str]]:
    """Stream one answer; text and finish reason by choice. ``leave_after`` hangs up after so many chunks."""
    stream = await client.chat.completions.create(stream=True, **arguments(key))
    texts: dict[int, str] = {}
    ends: dict[int, str] = {}
    seen = 0
    async for chunk in stream:
        for choice in chunk.choices:
            assert choice.index not in ends, "a chunk after the finish chunk"
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            if choice.finish_reason:
                ends[choice.index] = choice.finish_reason
        seen += 1
        if leave_after is not None and seen >= leave_after:
            await stream.close()
            return {}
    assert set(ends) == set(texts) == set(range(STYLES[key[1]].get("n", 1)))
    return {index: (texts[index], ends[index]) for index in texts}


async def load(server: Server, seconds: float) -> tuple[int, int, list[int]]:
    """Run the load. Returns whole answers, hang-ups, and memory readings over time."""
    client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120)
    keys = [(topic, style) for topic in TOPICS[: 4 if seconds < 60 else 16] for style in range(len(STYLES))]
    alone = {key: await whole(client, key) for key in keys}
    counts = {"whole": 0, "left": 0}
    memory: list[int] = []
    end = time.monotonic() + seconds

    async def one_client(number: int) -> None:
        dice = random.Random(number)
        while time.monotonic() < end:
            key = dice.choice(keys)
            if dice.random() < 0.33:
                await whole(client, key, leave_after=dice.randint(1, 12))
                counts["left"] += 1
            else:
                assert await whole(client, key) == alone[key], key
                counts["whole"] += 1

    async def watch() -> None:
        while time.monotonic() < end:
            memory.append(server.resident_bytes())
            await asyncio.sleep(0.5)

    await asyncio.gather(watch(), *(one_client(number) for number in range(CLIENTS)))
    await client.close()
    return counts["whole"], counts["left"], memory


@pytest.fixture(scope="module")
def server(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("serve") / "log"
    # A pool for about a dozen of the longest: waiting, preemption and chunked prompts all take place.
    with serving(smollm2_path, log, "--kv-memory", str(96 * 2**20), "--max-model-len", "1024", "--strict") as running:
        yield running


async def check_load(server: Server, seconds: float) -> None:
    answered, left, memory = await load(server, seconds)
    quarters = [memory[len(memory) * part // 4 - (part == 4)] >> 20 for part in range(5)]
    print(f"\n{answered} whole answers, {left} hang-ups, memory by quarters {quarters} MiB")
    # Few on a busy machine in a short run; that each is right matters more than how many there are.
    assert answered >= seconds / 2
    assert left >= seconds / 8
    server.wait_until("idle", 20)
    assert server.metric("tidemill_engine_kv_blocks_held") == 0
    kept = server.metric("tidemill_engine_kv_blocks_free") + server.metric("tidemill_engine_kv_blocks_cached")
    assert kept == server.metric("tidemill_engine_kv_blocks")
    settled = memory[len(memory) // 4 :]
    assert settled[-1] - settled[0] < 24 * 2**20, f"memory grew: {[m >> 20 for m in memory]}"


@pytest.mark.slow
async def test_a_quarter_minute_of_load(server: Server) -> None:
    await check_load(server, 15)


@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_two_minutes_of_load(server: Server) -> None:
    await check_load(server, float(os.environ.get("SOAK_SECONDS", "120")))

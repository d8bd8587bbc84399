"""A caller who says of each answer how it ended, and calls out where that is more than one way."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any, Final

import aiohttp

from benchmarks.chaos.replica import WORDS

__all__ = ["ROUTES", "Wrong", "ask"]

ROUTES: Final = (
    ("chat/completions", True),
    ("chat/completions", True),
    ("chat/completions", False),
    ("completions", True),
    ("responses", True),
    ("messages", True),
    ("embeddings", False),
)
"""(route, streamed), as often as they stand here."""
_ALL: Final = "".join(f"w{number} " for number in range(WORDS))


class Wrong(Exception):
    """An answer that ended in two ways, or in none."""


async def ask(session: aiohttp.ClientSession, url: str, number: int, numbers: random.Random, *, rude: bool) -> str:
    """How it ended: whole, error (within an answer), a status, refused or left. Raises Wrong. ``rude`` callers leave
    before the end or have no time."""
    route, streamed = numbers.choice(ROUTES)
    text = f"question {number if numbers.random() < 0.8 else number % 10}: "
    body: dict[str, Any] = {"model": "m", "stream": streamed, "temperature": 0, "max_tokens": 50}
    if route == "completions":
        body["prompt"] = text
    elif route in ("embeddings", "responses"):
        body["input"] = text
    else:
        body["messages"] = [{"role": "user", "content": text}]
    headers = {"x-request-timeout": f"{numbers.uniform(0.01, 0.5):.3f}"} if rude and numbers.random() < 0.3 else {}
    leaves = numbers.expovariate(20) if rude and numbers.random() < 0.5 else None
    try:
        async with asyncio.timeout(leaves), session.post(f"{url}/v1/{route}", json=body, headers=headers) as answer:
            if answer.status != 200:
                await answer.read()
                return str(answer.status)
            return _stream(route, await answer.read()) if streamed else _whole(route, await answer.read())
    except TimeoutError:
        return "left"
    except aiohttp.ClientError as error:
        raise Wrong(f"{route}: {type(error).__name__}: {error}") from error


def _whole(route: str, content: bytes) -> str:
    value = json.loads(content)
    if "completions" in route:
        (choice,) = value["choices"]
        said = choice["message"]["content"] if "chat" in route else choice["text"]
        if said != _ALL:
            raise Wrong(f"{route}: {said!r}")
    return "whole"


def _stream(route: str, content: bytes) -> str:
    said, ends, errors, markers = "", 0, 0, 0
    for line in content.decode().splitlines():
        if not line.startswith("data: "):
            continue
        if line == "data: [DONE]":
            markers += 1
            continue
        event = json.loads(line[6:])
        errors += "error" in event or event.get("type") == "error"
        ends += event.get("type") in ("message_stop", "response.completed")
        delta = event.get("delta")
        said += delta if isinstance(delta, str) else (delta or {}).get("text", "")
        for choice in event.get("choices", ()):
            said += choice.get("text") or choice.get("delta", {}).get("content") or ""
            ends += choice.get("finish_reason") is not None
    if ends + errors != 1 or markers != ("completions" in route):
        raise Wrong(f"{route}: {ends} ends, {errors} errors, {markers} markers: {content[-300:]!r}")
    if not _ALL.startswith(said) or (ends and said != _ALL):
        raise Wrong(f"{route}: {said!r}, {ends} ends")
    return "whole" if ends else "error"

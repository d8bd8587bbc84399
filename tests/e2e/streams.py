"""Streams as their callers see them, for tests that break what is behind a gateway."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import httpx

__all__ = ["Ended", "stream"]


@dataclass(kw_only=True)
class Ended:
    """One stream as its caller saw it."""

    replica: str
    words: int
    errors: int
    markers: int
    whole: bool
    usage: dict[str, Any]


async def stream(client: httpx.AsyncClient, number: int, begun: asyncio.Event) -> Ended:
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": f"{number}: count."}],
        **{"max_tokens": 60, "ignore_eos": True, "temperature": 0, "stream": True},
        "stream_options": {"include_usage": True},
    }
    found = Ended(replica="", words=0, errors=0, markers=0, whole=False, usage={})
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.status_code == 200, (await answer.aread()).decode()
        found.replica = answer.headers["x-tidemill-replica"]
        async for line in answer.aiter_lines():
            if line == "data: [DONE]":
                found.markers += 1
            elif line.startswith("data: "):
                event = json.loads(line.removeprefix("data: "))
                found.errors += "error" in event
                found.usage = event.get("usage") or found.usage
                for choice in event.get("choices", ()):
                    found.words += bool(choice["delta"].get("content"))
                    found.whole |= choice["finish_reason"] is not None
                if found.words > 2:
                    begun.set()
    return found

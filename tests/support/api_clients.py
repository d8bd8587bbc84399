"""The clients of OpenAI and Anthropic for a server of a test; one is a context."""

from __future__ import annotations

from typing import Protocol

import anthropic
import openai

__all__ = ["BODIES", "HI", "anthropic_client", "openai_client"]

HI = [{"role": "user", "content": "Hi"}]
BODIES = {
    "/v1/chat/completions": {"messages": HI},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/responses": {"input": "Hi"},
    "/v1/messages": {"messages": HI, "max_tokens": 50},
}
"""The least that each API wants of a request beside the model."""


class _Listening(Protocol):
    port: int


def openai_client(served: _Listening, key: str = "x") -> openai.AsyncOpenAI:
    """Asks once."""
    return openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{served.port}/v1", api_key=key, max_retries=0)


def anthropic_client(served: _Listening, key: str = "x") -> anthropic.AsyncAnthropic:
    """Asks once."""
    return anthropic.AsyncAnthropic(base_url=f"http://127.0.0.1:{served.port}", api_key=key, max_retries=0)

"""A request as routing sees it: amounts, keys and names."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.gateway.routing.prompt import Prompt

__all__ = ["Work"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one request asks of a replica. Amounts are estimates; no decision needs them to be exact."""

    tokens: int
    """Of the prompt."""
    output_tokens: int = 128
    """That its answer is expected to have."""
    blocks: tuple[int, ...] = ()
    """Keys of the prompt's full blocks, in order. A key stands for everything up to the end of its block."""
    block_tokens: int = 64
    """Tokens of one block."""
    prompt: Prompt | None = None
    """The prompt's token ids, where they are known."""
    model: str = ""
    session: str | None = None
    """What says that requests belong together; None: nothing does."""
    tenant: str = ""
    whole: bool = False
    """The answer comes in one piece, so that nothing is seen of when its first token was there."""

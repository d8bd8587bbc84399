"""What a request's place in the queue may depend on: from the request to what the scheduler compares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tidemill.core.tokens import EmbedRequest, TokenRequest
from tidemill.engine.templates import templates_of
from tidemill.scheduling.sequence import Standing

__all__ = ["standing_of"]


def standing_of(request: TokenRequest | EmbedRequest, order: Sequence[str], now: float) -> Standing:
    """``order``: the criteria that count; ``now``: the time on the scheduler's clock, from which a timeout counts."""
    standing = Standing(
        priority=request.priority,
        tenant=request.tenant,
        weight=request.weight,
        deadline=None if request.timeout is None else now + request.timeout,
    )
    if isinstance(request, EmbedRequest):
        return replace(standing, expected_tokens=1)
    return replace(
        standing,
        expected_tokens=request.expected_tokens,
        least_tokens=request.least_tokens,
        templates=templates_of(request.prompt, request.tenant) if "srf" in order else (),
    )

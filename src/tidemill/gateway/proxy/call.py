"""What one request to the gateway is and what it lives under, whoever answers it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidemill.core.clock import Clock
from tidemill.core.metrics import Recorder
from tidemill.gateway.decisions import Decision
from tidemill.serve.deadline import Deadline
from tidemill.serve.drain import Drain
from tidemill.serve.tracing import RequestSpan

__all__ = ["Call"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """As it came in, and the gateway's objects that its answer has to do with."""

    id: str
    path: str
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes
    began: float
    """By the clock."""
    deadline: Deadline
    stall_seconds: float
    """A caller who takes nothing for so long is gone."""
    decision: Decision
    trace: RequestSpan | None
    """None: nobody follows requests."""
    drain: Drain
    recorder: Recorder
    clock: Clock

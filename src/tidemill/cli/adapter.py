"""Which LoRA adapter a command without a field for one answers with."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemill.llm import LLM

__all__ = ["first_adapter"]


def first_adapter(llm: LLM) -> str | None:
    """The first that --lora names; None: there is none."""
    return next(iter(llm.adapters), None)

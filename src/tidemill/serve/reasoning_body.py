"""The fields with which a body bounds reasoning, by either of their names."""

from __future__ import annotations

from pydantic import BaseModel

from tidemill.core.errors import InvalidRequest
from tidemill.core.quoted import quoted

__all__ = ["ReasoningBody"]


class ReasoningBody(BaseModel):
    """None is absent."""

    thinking_budget: int | None = None
    max_reasoning_tokens: int | None = None

    def budget(self) -> tuple[int | None, str]:
        """Most tokens of reasoning, and the name they came under. Raises InvalidRequest."""
        sent = {name: getattr(self, name) for name in ReasoningBody.model_fields if getattr(self, name) is not None}
        for name, value in sent.items():
            if not 0 <= value < 2**31:
                raise InvalidRequest(f"{name} must be between 0 and {2**31 - 1}, not {quoted(value)}", param=name)
        if len(set(sent.values())) > 1:
            raise InvalidRequest(
                "thinking_budget and max_reasoning_tokens differ: they mean the same, send one",
                param="max_reasoning_tokens",
            )
        return next(((value, name) for name, value in sent.items()), (None, "thinking_budget"))

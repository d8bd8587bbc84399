"""What a prompt ends with: ``add_generation_prompt`` and ``continue_final_message``, named as in vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from tidemill.core.errors import InvalidRequest

__all__ = ["TurnFields"]

_PROMPT = "add_generation_prompt"


class TurnFields(BaseModel):
    """Fields for chat templates, of every route that renders conversations. None is absent."""

    model_config = ConfigDict(strict=True, extra="forbid")

    chat_template_kwargs: dict[str, Any] = {}
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False

    def template_options(self) -> Mapping[str, Any]:
        """The variables of the template. Raises InvalidRequest for fields that contradict each other."""
        options = self.chat_template_kwargs
        own = options.get(_PROMPT)
        if self.add_generation_prompt is not None and own not in (None, self.add_generation_prompt):
            raise InvalidRequest(f"{_PROMPT} and chat_template_kwargs.{_PROMPT} differ: send one", param=_PROMPT)
        if self.continue_final_message and (self.add_generation_prompt or own):
            raise InvalidRequest(
                f"{_PROMPT} begins a new message and continue_final_message goes on with the last: one must be false",
                param=_PROMPT,
            )
        return options if self.add_generation_prompt is None else {**options, _PROMPT: self.add_generation_prompt}

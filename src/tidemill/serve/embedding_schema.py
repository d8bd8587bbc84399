"""Bodies of /v1/embeddings. What depends on the model is checked behind the backend."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, field_validator

from tidemill.core.requests import EmbeddingRequest, Prompt
from tidemill.serve.deadline import seconds_within
from tidemill.serve.fields import FieldFilter
from tidemill.serve.sampling_body import priority_within
from tidemill.serve.schemas import Incoming, parsed, texts_or_ids

__all__ = ["EmbeddingBody", "embedding_request"]


class EmbeddingBody(BaseModel):
    """A body of /v1/embeddings. None is absent."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    model: str | None = None
    input: tuple[Any, ...]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    truncate_prompt_tokens: int | None = None
    user: str | None = None
    timeout: float | None = None
    priority: int = 0

    @field_validator("priority")
    @classmethod
    def _priority(cls, value: int) -> int:
        return priority_within(value)

    @field_validator("timeout")
    @classmethod
    def _timeout(cls, value: float | None) -> float | None:
        return None if value is None else seconds_within(value, "timeout", value)

    @field_validator("input", mode="before")
    @classmethod
    def _input(cls, value: Any) -> tuple[Prompt, ...]:
        return texts_or_ids(value, "input")


_FIELDS: Final = FieldFilter(EmbeddingBody.model_fields)


def embedding_request(incoming: Incoming) -> EmbeddingRequest:
    """A body as a canonical request; raises InvalidRequest or one of its kinds."""
    fields = parsed(EmbeddingBody, _FIELDS, incoming)
    return EmbeddingRequest(
        model=incoming.default_model if fields.model is None else fields.model,
        inputs=fields.input,
        encoding=fields.encoding_format,
        dimensions=fields.dimensions,
        truncate=fields.truncate_prompt_tokens,
        request_id=incoming.request_id,
        user=fields.user,
        account=incoming.account,
        trace=incoming.trace,
        timeout=fields.timeout,
        tenant=incoming.tenant,
        weight=incoming.weight,
        priority=fields.priority,
        raw=incoming.raw,
    )

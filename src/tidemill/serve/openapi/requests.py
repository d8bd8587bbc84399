"""What the routes take, as JSON schemas: the fields that the bodies have, and what their values may be.

Names and JSON types come from the bodies' own classes, so that none is forgotten. Null counts as absent: it is allowed
wherever a field may be left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel

from tidemill.core.sampling import MAX_TOP_LOGPROBS
from tidemill.serve.adapter_routes import LOAD_NOT_BUILT, UNLOAD_NOT_BUILT, LoadBody, UnloadBody
from tidemill.serve.embedding_schema import EmbeddingBody
from tidemill.serve.fields import IGNORED, NOT_BUILT
from tidemill.serve.openapi import responses
from tidemill.serve.openapi.anthropic import COUNT_BODY, MESSAGES_BODY
from tidemill.serve.openapi.fields import VALUES
from tidemill.serve.openapi.shapes import Schema, integer, nullable, record, text
from tidemill.serve.responses_request import NOT_KEPT, ResponsesBody
from tidemill.serve.schemas import ChatBody, CompletionBody
from tidemill.serve.text_schemas import DetokenizeBody, TemplateBody, TokenizeBody

__all__ = ["REQUESTS"]


def _body(
    model: type[BaseModel],
    own: Mapping[str, Schema] | None = None,
    *,
    not_built: Mapping[str, tuple[Any, ...]] = NOT_BUILT,
) -> Schema:
    """A body as its class reads it: a FieldFilter sorts out what is ignored or refused by name. ``own``: fields that
    hold something else than on other routes."""
    whole = model.model_json_schema()
    values = {**VALUES, **(own or {})}
    needed, other = {}, {}
    for name, made in whole["properties"].items():
        value = values.get(name) or _inlined(made, whole.get("$defs", {}))
        if name in whole.get("required", ()):
            needed[name] = value
        else:
            other[name] = nullable(value)
    for name in sorted(IGNORED - other.keys()):
        other[name] = {"description": "Changes no answer."}
    for name, neutral in sorted(not_built.items()):
        if name not in whole["properties"]:
            other[name] = {"enum": [*neutral, None], "description": "Other values ask for what is not here."}
    return record(needed, other)


def _inlined(schema: Schema, definitions: Mapping[str, Schema]) -> Schema:
    """As pydantic made it, without titles, defaults and references."""
    if "$ref" in schema:
        return _inlined(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    out = {key: value for key, value in schema.items() if key not in ("title", "default", "description")}
    if "anyOf" in out:
        out["anyOf"] = [_inlined(one, definitions) for one in out["anyOf"]]
    if "properties" in out:
        out["properties"] = {name: _inlined(one, definitions) for name, one in out["properties"].items()}
    return out


REQUESTS: Final[dict[tuple[str, str], Schema]] = {
    ("post", "/v1/chat/completions"): _body(ChatBody),
    ("post", "/v1/completions"): _body(CompletionBody, {"logprobs": integer(0, MAX_TOP_LOGPROBS)}),
    ("post", "/v1/responses"): _body(ResponsesBody, responses.FIELDS, not_built=NOT_KEPT),
    ("post", "/v1/messages"): MESSAGES_BODY,
    ("post", "/v1/messages/count_tokens"): COUNT_BODY,
    ("post", "/v1/embeddings"): _body(EmbeddingBody),
    ("post", "/tokenize"): _body(TokenizeBody, {"prompt": text()}),
    ("post", "/detokenize"): _body(DetokenizeBody),
    ("post", "/apply-template"): _body(TemplateBody),
    ("post", "/v1/load_lora_adapter"): _body(LoadBody, not_built=LOAD_NOT_BUILT),
    ("post", "/v1/unload_lora_adapter"): _body(UnloadBody, not_built=UNLOAD_NOT_BUILT),
}
"""By method and path: the JSON of a body."""

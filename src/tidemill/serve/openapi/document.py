"""The API as an OpenAPI 3.1 document: https://spec.openapis.org/oas/v3.1.1.html."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tidemill.core.errors import SetupError, TidemillError
from tidemill.core.version import __version__
from tidemill.serve.door import OPEN_PATHS
from tidemill.serve.openapi.answers import ANSWERS, ANTHROPIC_ERROR, ERROR
from tidemill.serve.openapi.requests import REQUESTS
from tidemill.serve.openapi.shapes import Schema, constant, number, record, table, text
from tidemill.serve.refusal import ANTHROPIC_PATHS

__all__ = ["openapi_document"]

_POSTED: Final = frozenset(("/v1/cache/reset", "/drain", "/admin/reload"))
"""Routes that take POST without a body."""
_CHUNK: Final = record(
    {"data": text(description="A chunk of the answer as JSON, an error, or [DONE].")}, {"event": constant("message")}
)
_NAMED: Final = record(
    {
        "data": text(contentMediaType="application/json", contentSchema=record({"type": text()}, more={})),
        "event": text(description="The type that stands in data too."),
    }
)
_STREAMED: Final = {
    "/v1/chat/completions": _CHUNK,
    "/v1/completions": _CHUNK,
    "/v1/responses": _NAMED,
    "/v1/messages": _NAMED,
}
"""Routes that answer with events where they are asked to, and what one of them is, as OpenAPI 3.1 has it."""
_TEXTS: Final = {
    "/metrics": "text/plain",
    "/v1/load_lora_adapter": "text/plain",
    "/v1/unload_lora_adapter": "text/plain",
}
"""Routes that answer with something else than JSON."""
_QUERY: Final = {
    "/v1/cache/reset": {"all": constant("true", "false")},
    "/drain": {"seconds": number(0, 86400)},
}
_ACCEPTED: Final = frozenset(("/drain",))


def openapi_document(routes: Mapping[str, str], *, keys: bool = False) -> dict[str, Any]:
    """``routes``: what each path is for. Each has its methods, what it takes, and all that it can answer. ``keys``: the
    server asks for them."""
    paths = {}
    for path, summary in routes.items():
        named = "/v1/models/{id}" if path == "/v1/models" else None
        paths[path] = {_method(path): _operation(path, summary, keys=keys)}
        if named:
            paths[named] = {"get": _operation(named, "one of the models served here", keys=keys)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Tidemill", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": {"Error": ERROR, "AnthropicError": ANTHROPIC_ERROR},
            **({"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}} if keys else {}),
        },
    }


def _method(path: str) -> str:
    return "post" if ("post", path) in REQUESTS or path in _POSTED else "get"


def _operation(path: str, summary: str, *, keys: bool) -> dict[str, Any]:
    method = _method(path)
    operation: dict[str, Any] = {
        "operationId": f"{method} {path}",
        "summary": summary,
        "responses": {("202" if path in _ACCEPTED else "200"): _answer(method, path), **_errors(method, path)},
    }
    if keys and path not in OPEN_PATHS:
        operation["security"] = [{"key": []}]
    parameters = [
        {"name": name, "in": "query", "required": False, "schema": schema}
        for name, schema in _QUERY.get(path, {}).items()
    ]
    if "{id}" in path:
        parameters.append({"name": "id", "in": "path", "required": True, "schema": text(minLength=1)})
    if parameters:
        operation["parameters"] = parameters
    if (method, path) in REQUESTS:
        schema = REQUESTS[method, path]
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return operation


def _answer(method: str, path: str) -> dict[str, Any]:
    if path in _TEXTS:
        return {"description": "text", "content": {_TEXTS[path]: {"schema": text()}}}
    content: dict[str, Any] = {"application/json": {"schema": ANSWERS.get((method, path), table({}))}}
    if path in _STREAMED:
        content["text/event-stream"] = {"schema": _STREAMED[path]}
    if path == "/":
        content["text/html"] = {"schema": text(description="For browsers, a page.")}
    return {"description": "the answer", "content": content}


def _errors(method: str, path: str) -> dict[str, Any]:
    """Every status of an error that the route can have."""
    name = "AnthropicError" if path.startswith(ANTHROPIC_PATHS) else "Error"
    shape: Schema = {"$ref": f"#/components/schemas/{name}"}
    return {
        str(status): {"description": said, "content": {"application/json": {"schema": shape}}}
        for status, said in sorted(_STATUSES.items())
        if method == "post" or status not in _OF_WORK
    }


def _kinds(error: type[TidemillError]) -> list[type[TidemillError]]:
    return [error, *(kind for below in error.__subclasses__() for kind in _kinds(below))]


def _statuses() -> dict[int, str]:
    found: dict[int, list[str]] = {}
    for kind in _kinds(TidemillError):
        if not issubclass(kind, SetupError):
            found.setdefault(kind.status, []).append(kind.code)
    return {status: ", ".join(codes) for status, codes in found.items()}


_STATUSES: Final = _statuses()
"""Statuses of errors, and their codes."""
_OF_WORK: Final = frozenset((408, 413, 415, 429, 504))
"""Statuses of requests with a body."""

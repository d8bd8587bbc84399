"""What a request says about the look of its answer, by any of the names that servers give it.

OpenAI's ``response_format``, vLLM's ``structured_outputs`` and ``guided_*``, llama.cpp's ``json_schema`` and
``grammar`` become one Grammar. Two of them in one request are refused, and so is whatever in them nobody reads.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from tidemill.core.errors import InvalidRequest, UnsupportedParameter
from tidemill.core.grammar import Grammar
from tidemill.serve.values import object_at, only, shown

__all__ = ["GRAMMAR_FIELDS", "grammar_of", "text_format"]

_TEXT: Final = {"type": "text"}


def grammar_of(body: Mapping[str, Any]) -> Grammar | None:
    """The grammar that the fields of a body ask for; None: any text. Raises InvalidRequest naming the field."""
    asked = [(name, body[name]) for name in GRAMMAR_FIELDS if not _asks_nothing(name, body.get(name))]
    if not asked:
        return None
    if len(asked) > 1:
        raise InvalidRequest(
            f"{asked[0][0]} and {asked[1][0]} both say how the answer looks: send one", param=asked[1][0]
        )
    name, value = asked[0]
    return GRAMMAR_FIELDS[name](value, name)


def _asks_nothing(name: str, value: Any) -> bool:
    """Absent, or what clients send that have a field for it and nothing in it."""
    return value is None or (name == "response_format" and value == _TEXT) or (name in _TEXTS and value == "")


def text_format(value: Any, name: str) -> Grammar | None:
    """As ``grammar_of``, of the Responses API's ``text.format``, where a schema's name stands beside the type."""
    if value in (None, _TEXT):
        return None
    fields = object_at(value, name)
    if fields.get("type") == "json_schema":
        return _named_schema({field: item for field, item in fields.items() if field != "type"}, name)
    return _response_format(value, name)


def _named_schema(fields: Mapping[str, Any], name: str) -> Grammar:
    only(fields, {"name", "description", "schema", "strict"}, name)
    if fields.get("schema") is None:
        raise InvalidRequest(f"{name}.schema is missing", param=f"{name}.schema")
    return _json(fields["schema"], f"{name}.schema")


def _response_format(value: Any, name: str) -> Grammar:
    fields = object_at(value, name)
    match fields.get("type"):
        case "json_object":
            only(fields, {"type"}, name)
            return Grammar.json_object(name=name)
        case "json_schema":
            only(fields, {"type", "json_schema"}, name)
            inner = f"{name}.json_schema"
            return _named_schema(object_at(fields.get("json_schema"), inner), inner)
        case "text":
            raise InvalidRequest(f"{name} of type text has no other fields", param=name)
        case "grammar" | "structural_tag" as kind:
            raise UnsupportedParameter(
                f"{name}.type {kind} is not built; structured_outputs.grammar takes a grammar", param=f"{name}.type"
            )
        case kind:
            raise InvalidRequest(
                f"{name}.type must be text, json_object or json_schema, not {shown(kind)}", param=f"{name}.type"
            )


def _structured_outputs(value: Any, name: str) -> Grammar:
    fields = object_at(value, name)
    only(fields, {*_KINDS, "json_object"}, name)
    asked = [kind for kind, inner in fields.items() if inner not in (None, False)]
    if len(asked) != 1:
        raise InvalidRequest(f"{name} must have one of json, json_object, regex, choice and grammar", param=name)
    kind = asked[0]
    if kind == "json_object":
        if fields[kind] is not True:
            raise InvalidRequest(f"{name}.json_object must be true", param=f"{name}.json_object")
        return Grammar.json_object(name=f"{name}.json_object")
    return _KINDS[kind](fields[kind], f"{name}.{kind}")


def _json(value: Any, name: str) -> Grammar:
    """A schema as an object, or as its text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"{name} is no JSON: {error}", param=name) from error
    if not isinstance(value, dict | bool):
        raise InvalidRequest(f"{name} must be a JSON schema, an object, not {shown(value)}", param=name)
    return Grammar.json_schema(value, name=name)


def _regex(value: Any, name: str) -> Grammar:
    return Grammar.regex(_text(value, name), name=name)


def _lark(value: Any, name: str) -> Grammar:
    return Grammar.lark(_text(value, name), name=name)


def _choice(value: Any, name: str) -> Grammar:
    if not isinstance(value, list):
        raise InvalidRequest(f"{name} must be a list of texts, not {shown(value)}", param=name)
    return Grammar.choice(value, name=name)


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidRequest(f"{name} must be a non-empty text, not {shown(value)}", param=name)
    return value


_KINDS: Final[dict[str, Callable[[Any, str], Grammar]]] = {
    "json": _json,
    "regex": _regex,
    "choice": _choice,
    "grammar": _lark,
}
_TEXTS: Final = ("guided_regex", "guided_grammar", "grammar")
"""Fields whose value is a text."""
GRAMMAR_FIELDS: Final[dict[str, Callable[[Any, str], Grammar]]] = {
    "response_format": _response_format,
    "structured_outputs": _structured_outputs,
    "guided_json": _json,
    "guided_regex": _regex,
    "guided_choice": _choice,
    "guided_grammar": _lark,
    "json_schema": _json,
    "grammar": _lark,
}
"""Every name, and how its value is read."""

"""Which requests may be answered with an answer to an earlier one, and which ones are the same request.

Two are the same where tenant, route and body are: every field counts, also those that nobody here knows. Left out of
the comparison is only what changes the wire and not the answer. The order of names in an object counts as little as
blanks do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, Literal

import msgspec

__all__ = ["CACHED_PATHS", "Mode", "Wish", "wish_of"]

Mode = Literal["whole", "stream", "stream+usage"]
"""How an answer comes: as one JSON text, or as events without or with the usage at their end."""
CACHED_PATHS: Final = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is asked for. ``digest`` is the same for every mode."""

    digest: bytes
    mode: Mode
    path: str
    fresh: bool = False
    """The caller wants none that was there before."""


def wish_of(
    path: str, body: bytes, headers: Mapping[str, str], tenant: str, *, sampled: bool, key_headers: Sequence[str] = ()
) -> Wish | None:
    """None: the request goes its way as if there was no cache. ``sampled``: also answers that are drawn may be kept."""
    asks = {part.strip() for part in headers.get("cache-control", "").lower().split(",")}
    if path not in CACHED_PATHS or "no-store" in asks:
        return None
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(fields, dict) or fields.get("store") or not _names_a_model(fields):
        return None
    if not sampled and path != "/v1/embeddings" and _is_drawn(fields):
        return None
    mode = _take_mode(fields)
    if mode is None:
        return None
    fields.pop("prompt_cache_key", None)
    said = [headers.get(name.lower()) for name in key_headers]
    try:
        text = msgspec.json.encode([tenant, path, said, fields], order="deterministic")
    except (RecursionError, UnicodeEncodeError):
        return None
    return Wish(digest=sha256(text).digest(), mode=mode, path=path, fresh="no-cache" in asks)


def _names_a_model(fields: dict[str, Any]) -> bool:
    """Without a name any replica's model may answer."""
    return isinstance(fields.get("model"), str) and bool(fields["model"])


def _is_drawn(fields: dict[str, Any]) -> bool:
    """Whether the same request may have another answer each time: neither temperature 0 nor a seed."""
    temperature, seed = fields.get("temperature"), fields.get("seed")
    return not (type(temperature) in (int, float) and temperature == 0) and type(seed) is not int


def _take_mode(fields: dict[str, Any]) -> Mode | None:
    """Take what says how the answer comes out of the fields; None: it is said in a way that is a replica's to judge."""
    stream = fields.pop("stream", None)
    if stream is None or stream is False:
        return "whole"  # stream_options without a stream stay, and are refused where they come to
    if stream is not True:
        return None
    options = fields.pop("stream_options", None)
    if options is None:
        return "stream"
    if not isinstance(options, dict) or type(usage := options.pop("include_usage", False)) is not bool:
        return None
    if options:
        fields["stream_options"] = options
    return "stream+usage" if usage else "stream"

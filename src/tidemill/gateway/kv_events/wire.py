"""KV events as vLLM, SGLang and our own engine put them into messages.

    [when, [event, ...], rank]      rank of data parallelism: may be missing
    event: {"type": "BlockStored", "block_hashes": ...} or ["BlockStored", block_hashes, ...]

Events by name are vLLM's since 0.24; by place they are those of vLLM before and of SGLang, which leave out what is at
the end. Source: vllm/distributed/kv_events.py and sglang/srt/disaggregation/kv_events.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from tidemill.gateway.routing.told_blocks import ToldBlocks

__all__ = ["NotEvents", "apply", "batch_time"]

_PLACES: Final = {
    "BlockStored": (
        *("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name"),
        *("extra_keys", "group_idx", "kv_cache_spec_kind"),
    ),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
    "AllBlocksCleared": (),
}
_WHOLE: Final = (None, "full_attention", "mla_attention")
"""Kinds of attention that need every block of a prompt: of the others a late one may be enough."""


class NotEvents(ValueError):
    """A message that is none of ours to read."""


def batch_time(payload: bytes) -> float:
    """When a message was made, in seconds since 1970. Raises NotEvents."""
    return _batch(payload)[0]


def apply(payload: bytes, told: ToldBlocks) -> None:
    """Take up one message. Raises NotEvents, having taken up what was before the wrong event."""
    _, events, rank = _batch(payload)
    for event in events:
        fields = _fields(event)
        try:
            _apply(fields, rank, told)
        except (KeyError, TypeError, ValueError) as error:
            raise NotEvents(f"a {fields.get('type')} with fields of other types: {error}") from error


def _batch(payload: bytes) -> tuple[float, list[Any], int]:
    try:
        found = msgspec.msgpack.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NotEvents(f"no MessagePack: {error}") from error
    if not isinstance(found, list) or len(found) < 2 or not isinstance(found[1], list):
        raise NotEvents("a batch is [when, events, rank]")
    rank = found[2] if len(found) > 2 and isinstance(found[2], int) else 0
    if not isinstance(found[0], int | float):
        raise NotEvents("a batch begins with its time")
    return float(found[0]), found[1], rank


def _fields(event: object) -> Mapping[str, Any]:
    if isinstance(event, dict) and event.get("type") in _PLACES:
        return event
    if isinstance(event, list) and event and isinstance(event[0], str) and event[0] in _PLACES:
        return {"type": event[0], **dict(zip(_PLACES[event[0]], event[1:], strict=False))}
    raise NotEvents("an event that is not BlockStored, BlockRemoved or AllBlocksCleared")


def _apply(fields: Mapping[str, Any], rank: int, told: ToldBlocks) -> None:
    if fields["type"] == "AllBlocksCleared":
        told.clear()
        return
    group = fields.get("group_idx") or 0
    names = [(rank, group, name) for name in fields["block_hashes"]]
    if fields["type"] == "BlockRemoved":
        told.remove(names, fields.get("medium"))
        return
    tokens, size = fields["token_ids"], fields["block_size"]
    if type(size) is not int or size < 1 or len(tokens) != size * len(names):
        raise ValueError(f"{len(names)} blocks of {size!r} tokens, and {len(tokens)} token ids")
    if fields.get("kv_cache_spec_kind") not in _WHOLE:
        return
    parent = fields.get("parent_block_hash")
    told.store(
        names,
        None if parent is None else (rank, group, parent),
        tokens,
        size,
        medium=fields.get("medium"),
        adapter=fields.get("lora_name") or "",
        extra=fields.get("extra_keys") or (),
    )

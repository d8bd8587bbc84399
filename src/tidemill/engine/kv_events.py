"""The prefix cache's events as vLLM's KV events: MessagePack that its routers read.

    [when, [event, ...], 0]                                when: seconds since 1970; 0: the data-parallel rank

An event is a map with its name under "type" (vLLM since 0.24) or an array with its name first (vLLM before, and what
was written for it). Blocks that follow each other in one sequence are one event. Their hashes are numbers of 64 bits
that mean the same within one engine process: they are keyed with its secret, and tenants that may not share blocks
have different ones for the same tokens.

Source: the field names and their order are those of vllm/distributed/kv_events.py (vllm-project/vllm, #16750, #19737,
#27577, #33304, #37688, #40984, #42892).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from tidemill.engine.prefix import BlockKeys, block_tokens, parent_number
from tidemill.scheduling.kv.cache import BlockKey
from tidemill.scheduling.kv.events import BlockRemoved, BlockStored, CacheEvent

__all__ = ["KvEventCoder", "KvEventFormat"]

KvEventFormat = Literal["map", "array"]

_MEDIUM = "CPU"
_RANK = 0
_ARRAY_FIELDS = {
    "BlockStored": (
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
        "extra_keys",
        "group_idx",
    ),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
    "AllBlocksCleared": (),
}


class KvEventCoder:
    """Events of one engine to bytes. ``windows``: of each KV group, in order; None: it keeps everything."""

    def __init__(
        self, keys: BlockKeys, *, block_size: int, windows: Sequence[int | None], form: KvEventFormat = "map"
    ) -> None:
        self._keys = keys
        self._block_size = block_size
        self._windows = windows
        self._form = form
        self._adapters: dict[int, tuple[int, str]] = {}
        """Of each stored block of an adapter, by its number."""
        self._encoder = msgspec.msgpack.Encoder()

    def batch(self, events: Sequence[CacheEvent], when: float) -> bytes:
        """One message."""
        maps = [self._map(run) for run in self._runs(events)]
        shown = maps if self._form == "map" else [_array(each) for each in maps]
        return self._encoder.encode([when, shown, _RANK])

    def number(self, key: BlockKey) -> int:
        """The hash of a block, as the events have it."""
        return self._keys.number(key)

    def _map(self, run: Sequence[CacheEvent]) -> dict[str, Any]:
        first = run[0]
        if isinstance(first, BlockStored):
            return self._stored(first, [one for one in run if isinstance(one, BlockStored)])
        if isinstance(first, BlockRemoved):
            hashes = [self.number(one.key) for one in run if isinstance(one, BlockRemoved)]
            for number in hashes if self._adapters else ():
                self._adapters.pop(number, None)
            return {"type": "BlockRemoved", "block_hashes": hashes, "medium": _MEDIUM, "group_idx": first.group}
        self._adapters.clear()
        return {"type": "AllBlocksCleared"}

    def _stored(self, first: BlockStored, run: Sequence[BlockStored]) -> dict[str, Any]:
        window = self._windows[first.group]
        lora_id, lora_name = self._adapter_of(first, run)
        event = {
            "type": "BlockStored",
            "block_hashes": [self.number(one.key) for one in run],
            "parent_block_hash": parent_number(first.key) if first.index else None,
            "token_ids": [token for one in run for token in block_tokens(one.key)],
            "block_size": self._block_size,
            "lora_id": lora_id,
            "medium": _MEDIUM,
            "lora_name": lora_name,
            "group_idx": first.group,
            "kv_cache_spec_kind": "full_attention" if window is None else "sliding_window",
        }
        return event if window is None else {**event, "kv_cache_spec_sliding_window": window}

    def _adapter_of(self, first: BlockStored, run: Sequence[BlockStored]) -> tuple[int | None, str | None]:
        """The number and name of the adapter that blocks were computed with: that of the one before the first, or of
        the chain that the first begins."""
        before = parent_number(first.key)
        adapter = self._adapters.get(before) if first.index else self._keys.labelled(before)
        if adapter is None:
            return None, None
        self._adapters |= {self.number(one.key): adapter for one in run}
        return adapter

    def _runs(self, events: Sequence[CacheEvent]) -> Iterable[Sequence[CacheEvent]]:
        """The events in their order, those together that one event of vLLM's can say."""
        run: list[CacheEvent] = []
        for event in events:
            if run and not self._continues(run[-1], event):
                yield run
                run = []
            run.append(event)
        if run:
            yield run

    def _continues(self, last: CacheEvent, event: CacheEvent) -> bool:
        if isinstance(last, BlockRemoved) and isinstance(event, BlockRemoved):
            return last.group == event.group
        if isinstance(last, BlockStored) and isinstance(event, BlockStored):
            follows = event.index == last.index + 1 and parent_number(event.key) == self.number(last.key)
            return last.group == event.group and follows
        return False


def _array(event: dict[str, Any]) -> list[Any]:
    name = event["type"]
    return [name, *(event.get(field) for field in _ARRAY_FIELDS[name])]

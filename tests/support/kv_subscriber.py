"""A subscriber to KV events as a router has it: vLLM's published shapes, a SUB socket, and the replay.

Written from vLLM's documentation of the messages, not from our encoder.
"""

from __future__ import annotations

from typing import Any

import msgspec
import zmq

__all__ = ["ArrayBatch", "KvSubscriber", "MapBatch"]


class Outer(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list[Any]
    data_parallel_rank: int | None = None


class MapEvent(msgspec.Struct, omit_defaults=True, tag=True, forbid_unknown_fields=True):
    pass


class MapShapes:
    class BlockStored(MapEvent, tag="BlockStored"):
        block_hashes: list[int | bytes]
        parent_block_hash: int | bytes | None
        token_ids: list[int]
        block_size: int
        lora_id: int | None
        medium: str | None
        lora_name: str | None
        extra_keys: list[tuple[Any, ...] | None] | None = None
        group_idx: int | None = None
        kv_cache_spec_kind: str | None = None
        kv_cache_spec_sliding_window: int | None = None

    class BlockRemoved(MapEvent, tag="BlockRemoved"):
        block_hashes: list[int | bytes]
        medium: str | None
        group_idx: int | None = None

    class AllBlocksCleared(MapEvent, tag="AllBlocksCleared"):
        pass


class ArrayEvent(msgspec.Struct, array_like=True, omit_defaults=True, tag=True):
    pass


class ArrayShapes:
    class BlockStored(ArrayEvent, tag="BlockStored"):
        block_hashes: list[int]
        parent_block_hash: int | None
        token_ids: list[int]
        block_size: int
        lora_id: int | None
        medium: str | None
        lora_name: str | None
        extra_keys: list[tuple[Any, ...] | None] | None = None
        group_idx: int | None = None

    class BlockRemoved(ArrayEvent, tag="BlockRemoved"):
        block_hashes: list[int]
        medium: str | None
        group_idx: int | None = None

    class AllBlocksCleared(ArrayEvent, tag="AllBlocksCleared"):
        pass


class MapBatch(Outer):
    events: list[MapShapes.BlockStored | MapShapes.BlockRemoved | MapShapes.AllBlocksCleared]


class ArrayBatch(Outer):
    events: list[ArrayShapes.BlockStored | ArrayShapes.BlockRemoved | ArrayShapes.AllBlocksCleared]


class KvSubscriber:
    """Follows one publisher. ``blocks``: (group, hash) to (parent's hash, token ids) of what it believes is cached."""

    def __init__(self, events: str, replay: str | None, *, topic: str = "", shapes: type[Outer] = MapBatch) -> None:
        self._context = zmq.Context()
        self._sub = self._context.socket(zmq.SUB)
        self._sub.setsockopt(zmq.RCVHWM, 0)
        self._sub.connect(events)
        self._sub.setsockopt_string(zmq.SUBSCRIBE, topic)
        self._replay = self._context.socket(zmq.DEALER)
        if replay is not None:
            self._replay.connect(replay)
        self._decoder = msgspec.msgpack.Decoder(shapes)
        self.blocks: dict[tuple[int, int], tuple[int | None, tuple[int, ...]]] = {}
        self.last = -1
        self.replayed: list[int] = []
        self.batches: list[Outer] = []
        self.topics: set[bytes] = set()

    def close(self) -> None:
        self._context.destroy(linger=0)

    def __enter__(self) -> KvSubscriber:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def follow(self, last: int) -> None:
        """Take in messages up to number ``last``. What is missing is asked for, and so is what was sent before the
        subscription had reached the publisher."""
        while self.last < last:
            if self.poll():
                continue
            for missed, payload in self.ask(self.last + 1):
                self.replayed.append(missed)
                self._apply(missed, payload)

    def poll(self) -> bool:
        """Take in the next message, if one comes within a moment."""
        if not self._sub.poll(200):
            return False
        topic, number, payload = self._sub.recv_multipart()
        self.topics.add(topic)
        self.take(int.from_bytes(number, "big"), payload)
        return True

    def take(self, number: int, payload: bytes) -> None:
        """One message of the SUB socket."""
        if number > self.last + 1:
            for missed, old in self.ask(self.last + 1):
                if self.last < missed < number:
                    self.replayed.append(missed)
                    self._apply(missed, old)
        if number > self.last:
            self._apply(number, payload)

    def ask(self, first: int) -> list[tuple[int, bytes]]:
        """What the replay still has, from a number on."""
        self._replay.send_multipart([b"", first.to_bytes(8, "big")])
        found = []
        while True:
            assert self._replay.poll(30_000), "the replay did not end"
            empty, number, payload = self._replay.recv_multipart()
            assert empty == b""
            if not payload:
                assert int.from_bytes(number, "big", signed=True) == -1
                return found
            found.append((int.from_bytes(number, "big"), payload))

    def _apply(self, number: int, payload: bytes) -> None:
        self.last = number
        batch = self._decoder.decode(payload)
        self.batches.append(batch)
        for event in batch.events:
            match type(event).__name__:
                case "BlockStored":
                    self._store(event)
                case "BlockRemoved":
                    for name in event.block_hashes:
                        del self.blocks[event.group_idx, name]
                case "AllBlocksCleared":
                    self.blocks.clear()

    def _store(self, event: Any) -> None:
        assert len(event.token_ids) == len(event.block_hashes) * event.block_size
        parent = event.parent_block_hash
        assert parent is None or (event.group_idx, parent) in self.blocks, "a block whose parent is not known"
        for at, name in enumerate(event.block_hashes):
            key = (event.group_idx, name)
            assert key not in self.blocks, "stored twice"
            begin = at * event.block_size
            self.blocks[key] = (parent, tuple(event.token_ids[begin : begin + event.block_size]))
            parent = name

"""Messages by hand, byte for byte, as MessagePack and vLLM's and SGLang's events have them."""

from __future__ import annotations

import struct

import pytest

from tidemill.gateway.kv_events.wire import NotEvents, apply, batch_time
from tidemill.gateway.routing.prompt import Prompt
from tidemill.gateway.routing.told_blocks import ToldBlocks


def text(value: str) -> bytes:
    """Fixed or 8-bit length."""
    raw = value.encode()
    return (bytes([0xA0 | len(raw)]) if len(raw) < 32 else bytes([0xD9, len(raw)])) + raw


def u64(value: int) -> bytes:
    return b"\xcf" + struct.pack(">Q", value)


def array(*items: bytes) -> bytes:
    return bytes([0x90 | len(items)]) + b"".join(items)


def table(**items: bytes) -> bytes:
    return bytes([0x80 | len(items)]) + b"".join(text(name) + value for name, value in items.items())


def batch(*events: bytes, rank: bytes = b"\x00") -> bytes:
    return array(b"\xcb" + struct.pack(">d", 1234.5), array(*events), rank)


NIL = b"\xc0"
HASH, CHILD = 2**63 + 5, 2**64 - 1
NAMED = table(
    type=text("BlockStored"),
    block_hashes=array(u64(HASH), u64(CHILD)),
    parent_block_hash=NIL,
    token_ids=array(*map(bytes, ([1], [2], [3], [4]))),
    block_size=b"\x02",
    lora_id=NIL,
    medium=text("GPU"),
    lora_name=NIL,
    group_idx=b"\x00",
    kv_cache_spec_kind=text("full_attention"),
)
PLACED = array(
    text("BlockStored"), array(u64(HASH), u64(CHILD)), NIL, array(b"\x01", b"\x02", b"\x03", b"\x04"), b"\x02", NIL
)


@pytest.mark.parametrize("event", [NAMED, PLACED], ids=["map", "array"])
def test_stored_blocks_are_found_by_their_tokens(event: bytes) -> None:
    told = ToldBlocks()
    apply(batch(event), told)
    assert batch_time(batch(event)) == 1234.5
    assert told.match(Prompt([1, 2, 3, 4, 5])) == 4
    assert told.match(Prompt([1, 2, 9, 9])) == 2
    assert told.match(Prompt([9, 9, 3, 4])) == 0


def test_a_hash_of_bytes_a_child_and_its_removal() -> None:
    told = ToldBlocks()
    name = b"\xc4\x03abc"
    apply(batch(array(text("BlockStored"), array(name), NIL, array(b"\x01"), b"\x01", NIL, text("GPU"))), told)
    child = array(text("BlockStored"), array(u64(7)), name, array(b"\x02"), b"\x01", NIL, text("GPU"))
    apply(batch(child, rank=NIL), told)
    assert told.match(Prompt([1, 2])) == 2
    apply(batch(table(type=text("BlockRemoved"), block_hashes=array(name), medium=text("GPU"))), told)
    assert told.match(Prompt([1, 2])) == 0
    assert len(told) == 1
    apply(batch(array(text("AllBlocksCleared"))), told)
    assert (len(told), told.complete) == (0, True)


def test_a_block_that_was_copied_is_held_until_both_are_gone() -> None:
    told = ToldBlocks()
    for medium in ("GPU", "CPU"):
        apply(batch(array(text("BlockStored"), array(u64(7)), NIL, array(b"\x01"), b"\x01", NIL, text(medium))), told)
    apply(batch(array(text("BlockRemoved"), array(u64(7)), text("GPU"))), told)
    assert told.match(Prompt([1])) == 1
    apply(batch(array(text("BlockRemoved"), array(u64(7)), text("CPU"))), told)
    assert told.match(Prompt([1])) == 0


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        array(b"\x01"),
        batch(array(text("Surprise"))),
        batch(array(text("BlockStored"), array(u64(7)), NIL, array(b"\x01"), b"\x02")),
        batch(array(text("BlockStored"), array(u64(7)), NIL, array(b"\x01"), b"\x00")),
        batch(array(text("BlockStored"), u64(7))),
        batch(table(type=text("BlockRemoved"))),
        batch(array(text("BlockStored"), array(array(b"\x01")), NIL, array(b"\x01"), b"\x01")),
        batch(array(text("BlockStored"), array(u64(7)), NIL, array(array()), b"\x01")),
    ],
)
def test_what_is_none_of_it_is_refused(payload: bytes) -> None:
    with pytest.raises(NotEvents):
        apply(payload, ToldBlocks())

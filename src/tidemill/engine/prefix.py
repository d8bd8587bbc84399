"""The keys that KV blocks are found by: a chain of hashes over the tokens of a sequence.

    root   = H(what the KV depends on besides tokens, and who may share it)
    key[0] = H(root)   + tokens 0 .. 15
    key[1] = H(key[0]) + tokens 16 .. 31                 block_size 16, 4 bytes a token
    tail   = H(key[1]) + tokens 32 .. 36

A key stands for its block's tokens and for all before them, and shows which keys are of blocks in the same place. H is
BLAKE2b with 16 bytes (RFC 7693), keyed with a secret of the process: nobody outside can look for two texts with one
key. Every part has a fixed width or its length before it, so no two different inputs are the same bytes.
"""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Sequence
from hashlib import blake2b

from tidemill.scheduling.kv.cache import BlockKey

__all__ = ["BlockKeys", "block_tokens", "parent_number"]

_BYTES = 16
_TOKEN_BYTES = 4
_NUMBER_BYTES = 8
_MAX_LABELS = 4096
"""Chains whose adapters are remembered; with many more tenants and salts at once, the oldest are forgotten."""
_TOKEN = "I" if array("I").itemsize == 4 else "L"


class BlockKeys:
    """Makes the keys of one engine."""

    def __init__(self, block_size: int, *, secret: bytes | None = None) -> None:
        self._block_size = block_size
        secret = secrets.token_bytes(32) if secret is None else secret
        self._labels: dict[int, tuple[int, str]] = {}
        self._keyed = blake2b(digest_size=_BYTES, key=secret)

    def root(self, *parts: str) -> BlockKey:
        """The root of a chain: sequences share blocks only if they have the same one. No parts, no tenant and the
        empty string are three different things."""
        encoded = [part.encode("utf-8", "surrogatepass") for part in parts]
        return self._hash(b"".join(len(part).to_bytes(8, "little") + part for part in encoded))

    def label(self, root: BlockKey, adapter: int, name: str) -> None:
        """Remember the adapter of a chain, for those who are told of its blocks."""
        self._labels[self.number(root)] = (adapter, name)
        if len(self._labels) > _MAX_LABELS:
            del self._labels[next(iter(self._labels))]

    def labelled(self, number: int) -> tuple[int, str] | None:
        """The number and name of the adapter of the chain whose root is called so."""
        return self._labels.get(number)

    def extend(self, keys: list[BlockKey], root: BlockKey, tokens: Sequence[int]) -> None:
        """Append the keys of the blocks that ``tokens`` (ids below 2**32, from the first one on) fill and ``keys``
        has not got yet."""
        size = self._block_size
        first, end = len(keys), len(tokens) // size
        if first >= end:
            return
        data = _packed(tokens[first * size : end * size])
        step = size * _TOKEN_BYTES
        parent = keys[-1] if keys else root
        for at in range(0, len(data), step):
            parent = BlockKey(self._hash(parent) + data[at : at + step])
            keys.append(parent)

    def tail(self, keys: Sequence[BlockKey], root: BlockKey, tokens: Sequence[int]) -> BlockKey | None:
        """The key of the tokens behind those of the keys, which do not fill a block; None if there are none."""
        rest = tokens[len(keys) * self._block_size :]
        return BlockKey(self._hash(keys[-1] if keys else root) + _packed(rest)) if rest else None

    def number(self, key: BlockKey) -> int:
        """A name of 64 bits for a block outside the process, where its key would say too much and take too much room.
        Of the block before it: ``parent_number``."""
        return int.from_bytes(self._hash(key)[:_NUMBER_BYTES], "little")

    def _hash(self, data: bytes) -> BlockKey:
        hasher = self._keyed.copy()
        hasher.update(data)
        return BlockKey(hasher.digest())


def parent_number(key: BlockKey) -> int:
    """``BlockKeys.number`` of the block before the one with this key, which begins with it."""
    return int.from_bytes(key[:_NUMBER_BYTES], "little")


def block_tokens(key: BlockKey) -> list[int]:
    """The token ids of a block."""
    return array(_TOKEN, key[_BYTES:]).tolist()


def _packed(tokens: Sequence[int]) -> bytes:
    return array(_TOKEN, tokens).tobytes()

"""What a replica's KV events say that it holds: an index over token blocks.

An engine's hashes mean something to the engine alone. So each block gets a key of ours, made of its parent's key and
its tokens, and the engine's hash is kept only to find the block again when it is removed or has a child. A prompt whose
tokens are known is then looked up without knowing how the engine hashes.

The index is complete from the moment on at which the engine is known to hold nothing, as long as no message is lost.
Until then it knows some of what is there: what was stored since and not removed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

from tidemill.gateway.routing.blocks import next_block
from tidemill.gateway.routing.prompt import Prompt

__all__ = ["MOST_BLOCKS", "ToldBlocks"]

MOST_BLOCKS = 500_000
"""Of one replica: about 100 MB."""


class _Block:
    __slots__ = ("key", "media")

    def __init__(self, key: int) -> None:
        self.key = key
        self.media: set[str | None] = set()


class ToldBlocks:
    """Of one replica. Of more than ``most`` blocks those stored first are forgotten."""

    def __init__(self, most: int = MOST_BLOCKS) -> None:
        self._most = most
        self._blocks: dict[Hashable, _Block] = {}
        """By the engine's hash, the longest stored first."""
        self._held: Counter[int] = Counter()
        """How many of the engine's blocks have a key: salted ones may have the same tokens."""
        self._adapters: Counter[str] = Counter()
        self._size = 0
        self.complete = False
        """Whether it knows all that the replica holds."""
        self.losses = 0
        """How often messages were lost and what was known with them."""

    def __len__(self) -> int:
        return len(self._blocks)

    def match(self, prompt: Prompt) -> int:
        """Tokens of a prompt, from the first on, whose blocks are held."""
        if not self._size or not self._held:
            return 0
        adapter = prompt.model if prompt.model in self._adapters else ""
        found = 0
        for key in prompt.keys(self._size, adapter):
            if key not in self._held:
                break
            found += self._size
        return found

    def store(
        self,
        hashes: Sequence[Hashable],
        parent: Hashable | None,
        tokens: Sequence[int],
        size: int,
        *,
        medium: str | None = None,
        adapter: str = "",
        extra: Sequence[object] = (),
    ) -> None:
        """Blocks that follow each other, the first of them ``parent``, each of ``size`` tokens. ``extra``: what each
        block's content depends on besides (pictures, a salt), if there is anything. Blocks after one that is not known
        cannot be placed, and are left out."""
        if parent is None:
            key = hash(adapter)
        elif parent in self._blocks:
            key = self._blocks[parent].key
        else:
            return
        self._size = size
        if adapter:
            self._adapters[adapter] = 1
        for place, name in enumerate(hashes):
            key = next_block(key, tokens[place * size : (place + 1) * size])
            if place < len(extra) and extra[place]:
                key = hash((key, repr(extra[place])))
            self._put(name, key, medium)

    def remove(self, hashes: Sequence[Hashable], medium: str | None = None) -> None:
        """Blocks are not on a medium any more; one is held while it is on any."""
        for name in hashes:
            block = self._blocks.get(name)
            if block is None:
                continue
            block.media.discard(medium)
            if not block.media:
                self._drop(name)

    def clear(self) -> None:
        """The replica holds nothing: from now on everything is known."""
        self._blocks.clear()
        self._held.clear()
        self._adapters.clear()
        self.complete = True

    def lose(self) -> None:
        """Messages are missing: what was known may not be so any more."""
        self.losses += self.complete or bool(self._blocks)
        self.clear()
        self.complete = False

    def _put(self, name: Hashable, key: int, medium: str | None) -> None:
        block = self._blocks.get(name)
        if block is not None and block.key != key:
            self._drop(name)
            block = None
        if block is None:
            block = self._blocks[name] = _Block(key)
            self._held[key] += 1
        block.media.add(medium)
        while len(self._blocks) > self._most:
            self._drop(next(iter(self._blocks)))

    def _drop(self, name: Hashable) -> None:
        key = self._blocks.pop(name).key
        self._held[key] -= 1
        if not self._held[key]:
            del self._held[key]

"""The keys of sequences' KV blocks, kept as they grow: what the scheduler shares blocks by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tidemill.core.tokens import TokenRequest
from tidemill.engine.prefix import BlockKeys
from tidemill.engine.sequences import EngineSequence
from tidemill.graph.lora import AdapterNumber
from tidemill.scheduling.kv.cache import BlockKey
from tidemill.scheduling.strategies import PREFIX_CACHE

__all__ = ["BlockNames"]


class BlockNames:
    """Names blocks by the tokens in them, by tenant, salt and adapter, and by how often the tenant's were reset."""

    def __init__(self, keys: BlockKeys | None, block_size: int) -> None:
        """Without ``keys`` nothing is shared, and nothing is named."""
        self._keys = keys
        self._block_size = block_size
        self._resets: Counter[str] = Counter()

    def reset(self, tenant: str) -> None:
        """Let no later sequence of a tenant find what was computed until now."""
        self._resets[tenant] += 1

    def begin(self, request: TokenRequest, sequences: Sequence[EngineSequence]) -> None:
        """Give the sequences of a request the keys of their prompt's blocks."""
        if self._keys is None or PREFIX_CACHE.name in request.without:
            return
        root = self._root(request, sequences[0].adapter)
        keys: list[BlockKey] = []
        self._keys.extend(keys, root, request.prompt)
        tail = self._keys.tail(keys, root, request.prompt)
        for sequence in sequences:
            if sequence.counters.scored:
                continue  # every position of its prompt has to be computed
            sequence.root = root
            sequence.counters.tail = tail
            sequence.counters.keys = list(keys)

    def _root(self, request: TokenRequest, adapter: AdapterNumber) -> BlockKey:
        """Blocks are shared by requests of one tenant and salt, and of one adapter: what is computed depends on it."""
        assert self._keys is not None
        resets = str(self._resets[request.tenant])
        if not adapter:
            return self._keys.root(request.tenant, request.cache_salt, resets)
        root = self._keys.root(request.tenant, request.cache_salt, resets, str(adapter))
        self._keys.label(root, adapter, request.adapter)
        return root

    def extend(self, sequence: EngineSequence) -> None:
        """Name the blocks that a sequence's new tokens fill."""
        if self._keys is not None and sequence.root is not None:
            self._keys.extend(sequence.counters.keys, sequence.root, sequence.tokens)

    def tail(self, sequence: EngineSequence) -> BlockKey | None:
        """The key of the last block of what is computed of a sequence, if that is not full."""
        if self._keys is None or sequence.root is None:
            return None
        counters = sequence.counters
        full = counters.num_computed // self._block_size
        return self._keys.tail(counters.keys[:full], sequence.root, sequence.tokens[: counters.num_computed])

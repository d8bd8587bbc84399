"""Packed matrices for the machine: mapped from the cache where they are kept, else packed, and kept for next time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tidemill.core.cache_folder import CacheUnusable
from tidemill.core.errors import ModelLoadError
from tidemill.executors.native.packed_cache import MappedEntry, PackedCache, PackItem
from tidemill.executors.native.pages import in_file_map, release_origin
from tidemill.graph.formats import WeightTensor
from tidemill.graph.weight_source import WeightSource

if TYPE_CHECKING:
    from tidemill.executors.native._native import Machine

__all__ = ["PackedWeights"]

_log = logging.getLogger(__name__)


class PackedWeights:
    """The packed matrices of one machine, and what has to live as long as they do."""

    def __init__(self, machine: Machine, cache: PackedCache | None) -> None:
        self._machine = machine
        self._cache = cache
        self._entry: MappedEntry | None = None
        self._writer: threading.Thread | None = None
        self.cached_bytes = 0
        """Bytes of weights that came from the cache and are used in place."""
        self.items: tuple[PackItem, ...] = ()

    def load(self, items: Sequence[PackItem], weights: Mapping[str, WeightTensor]) -> None:
        """Give the machine every matrix, in order. Raises ModelLoadError for a weight of another shape."""
        self.items = tuple(items)
        if self._cache is None or not isinstance(weights, WeightSource) or not items:
            self._pack(items, weights)
            return
        cache = self._cache
        key = cache.key_of(items, weights)
        self._entry = cache.find(key, items)
        if self._entry is not None:
            self._use(self._entry, items)
            return
        self._pack(items, weights)
        self._writer = threading.Thread(
            target=self._keep, args=(cache, key, items, weights), name="tidemill-packed-cache"
        )
        self._writer.start()

    def close(self) -> None:
        """Wait until the matrices are kept. Before the machine is closed: they are in its memory."""
        if self._writer is not None:
            self._writer.join()
        self._writer = None

    def release(self) -> None:
        """Give the cache's entry back. After the machine is closed: it reads from it."""
        if self._entry is not None:
            self._entry.close()
        if self._cache is not None:
            self._cache.close()
        self._entry = None

    def _use(self, entry: MappedEntry, items: Sequence[PackItem]) -> None:
        for item, data in zip(items, entry.matrices, strict=True):
            index = self._machine.use_matrices(data, item.format, item.count, item.n, item.k)
            assert index == item.index
            self.cached_bytes += item.size

    def _pack(self, items: Sequence[PackItem], weights: Mapping[str, WeightTensor]) -> None:
        for item in items:
            tensor = weights[item.name]
            if tensor.shape != (item.count * item.n, item.k):
                raise ModelLoadError(
                    f"weight {item.name} has shape {tensor.shape}, expected {(item.count * item.n, item.k)}"
                )
            data = tensor.data
            index = self._machine.add_matrices(data, item.format, item.count, item.n, item.k, in_file_map(data))
            assert index == item.index
            release_origin(weights, item.name)

    def _keep(self, cache: PackedCache, key: str, items: Sequence[PackItem], weights: WeightSource) -> None:
        """Runs on a thread of its own: the first answer need not wait for the disk."""
        matrices = [self._machine.packed(item.index, item.count) for item in items]
        try:
            cache.store(key, weights.label, matrices, lambda: key == cache.key_of(items, weights, threads=1))
        except CacheUnusable as error:
            _log.warning("packed cache: the weights are not kept: %s", error)
        except Exception:
            _log.exception("packed cache: the weights are not kept")

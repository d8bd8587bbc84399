"""Where the memory goes: weights, KV pool, workspace, and what stays free, worked out before anything is loaded.

    |<--------------------------- available (machine or control group) -------------------------->|
    | weights, packed | workspace |                  KV pool                  |  spare  | reserve  |
                                  |  block | block | ...  block_size tokens each

The pool is sized first by demand, ``max_running`` sequences of ``max_model_len`` tokens, then cut to what is there:
by default to ``DEFAULT_POOL`` or one whole sequence, whichever is more, so that a small model on a large machine does
not take it over; ``kv_memory`` asks for an exact size. One sequence of ``max_model_len`` must fit: a length that was
not asked for is reduced until it does, one that was asked for is refused.

With several KV groups there is one pool per group; ``kv_pools`` splits the memory so that all hold the same number of
sequences. Blocks are counted here in a group without a window.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tidemill.core.adapters import adapter_sources
from tidemill.core.config import EngineConfig
from tidemill.core.errors import ConfigError, DoesNotFit
from tidemill.executors.protocol import KvPoolSpec
from tidemill.graph.graph import Embed
from tidemill.graph.kv_format import KV_GROUP, KvFormat
from tidemill.graph.lora import full_adapter_bytes
from tidemill.graph.passes.cost import kv_bytes_per_token, score_matrix_bytes, weight_bytes, workspace_bytes
from tidemill.graph.passes.fuse import fuse
from tidemill.models.kv_pools import GroupPool, PoolSizes
from tidemill.models.loading.adapter import stored_bytes
from tidemill.models.model import Model
from tidemill.models.shape import ModelShape

__all__ = [
    "DEFAULT_POOL",
    "WORKSPACE_SHARE",
    "MemoryPlan",
    "format_bytes",
    "plan_memory",
    "reserve_bytes",
]

DEFAULT_POOL = 4 * 2**30
"""Bytes of KV a pool takes at most when kv_memory is not set (one sequence of max_model_len may take more)."""
WORKSPACE_SHARE = 2
"""Executors take at most this much of the live activations: the native one keeps 8-bit copies and shares slots between
values of unlike widths, the reference computes in float64."""
_SMALLER = {KvFormat.F32: KvFormat.F16, KvFormat.F16: KvFormat.Q8_0, KvFormat.Q8_0: KvFormat.Q4_0}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Sizes in bytes, counts in tokens."""

    model: str
    available: int
    """What this process may take, before loading."""
    quantize: str | None
    """How weights are rounded when they are loaded."""
    weights: int
    """Weights as stored in the file, or once rounded."""
    packed: int
    """What they take once packed for the kernels; the file's own pages are let go, and an embedding that is no output
    head is read from them."""
    adapters: int
    """LoRA adapters: those that are named, and room for more of the largest rank."""
    adapter_places: int
    workspace: int
    """Activations of the largest step."""
    reserve: int
    """Kept free: interpreter, server and tokenizer, and room for the system to breathe."""
    kv_format: str
    kv_bytes_per_token: int
    kv_formula: str
    """The number above with this model's own figures."""
    block_size: int
    num_blocks: int
    """Blocks of a pool whose group has no window; ``kv_groups`` has those of each."""
    max_running: int
    max_model_len: int
    """Most tokens of one sequence, after fitting."""
    model_max_len: int
    """What the model was made for, or what was asked for."""
    pool_limit: str
    """What decided the pool's size: demand, cap, memory or kv_memory."""
    kv_groups: tuple[GroupPool, ...]
    """One per KV group, in the graph's order."""
    draft: int = 0
    """A draft model beside it: weights, workspace and KV of its own."""
    whole: bool = False
    """Sequences are computed in one step each, and end with it."""

    @property
    def capacity_tokens(self) -> int:
        """Tokens the pools hold over all sequences, those that windows have passed included."""
        return self.num_blocks * self.block_size

    @property
    def kv_bytes(self) -> int:
        """Bytes of all pools."""
        return sum(group.bytes for group in self.kv_groups)

    @property
    def total(self) -> int:
        """Everything that is planned, without the reserve."""
        return self.packed + self.adapters + self.workspace + self.kv_bytes + self.draft

    @property
    def headroom(self) -> int:
        """What stays free beyond the reserve."""
        return self.available - self.reserve - self.total

    @property
    def full_sequences(self) -> int:
        """How many sequences of max_model_len the pool holds at once."""
        return self.num_blocks // _blocks(self.max_model_len, self.block_size)

    def pools(self) -> tuple[KvPoolSpec, ...]:
        """The pools to allocate, one per KV group, in the graph's order."""
        return tuple(
            KvPoolSpec(group=group.name, num_blocks=group.num_blocks, block_size=self.block_size)
            for group in self.kv_groups
        )

    def explain(self) -> list[str]:
        """The plan in lines of text, for people."""
        return [
            f"memory for {self.model}",
            f"  weights    {format_bytes(self.packed):>10}   packed for the kernels; "
            f"{format_bytes(self.weights)} {f'quantised to {self.quantize}' if self.quantize else 'in the file'}",
            *self._adapter_lines(),
            f"  workspace  {format_bytes(self.workspace):>10}   activations of the largest step",
            *self._kv_lines(),
            *(
                [f"  draft      {format_bytes(self.draft):>10}   the draft model, with a KV of its own"]
                if self.draft
                else []
            ),
            f"  total      {format_bytes(self.total):>10}   of {format_bytes(self.available)} available; "
            f"{format_bytes(self.reserve)} kept free, {format_bytes(self.headroom)} spare",
            f"  KV per token: {self.kv_formula} = {self.kv_bytes_per_token} bytes ({self.kv_format})",
            f"  {self._length_line()}",
            f"  {self._pool_line()}",
        ]

    def _adapter_lines(self) -> Iterator[str]:
        if self.adapter_places:
            yield f"  adapters   {format_bytes(self.adapters):>10}   LoRA: {self.adapter_places} places (max_loras)"

    def _kv_lines(self) -> Iterator[str]:
        total = f"{format_bytes(self.kv_bytes):>10}"
        if len(self.kv_groups) == 1:
            yield f"  KV pool    {total}   {self._blocks_text(self.kv_groups[0])}"
            return
        yield f"  KV pools   {total}   for the same number of sequences each"
        for group in self.kv_groups:
            yield f"    {group.name:<8} {format_bytes(group.bytes):>10}   {self._blocks_text(group)}"

    def _blocks_text(self, group: GroupPool) -> str:
        text = f"{group.num_blocks} blocks x {self.block_size} tokens = {group.num_blocks * self.block_size} tokens"
        if group.window is None:
            return text
        return f"{text}: {group.sequence_blocks} blocks per window of {group.window}, the rest for a step"

    def _length_line(self) -> str:
        line = f"longest sequence: {self.max_model_len} tokens"
        if self.max_model_len == self.model_max_len:
            return line
        return f"{line}, cut from {self.model_max_len} to fit the KV pool"

    def _pool_line(self) -> str:
        if self.whole and self.pool_limit == "demand":
            return "texts are computed whole: the pool holds those of a step, and nothing is kept after it"
        reasons = {
            "demand": f"all {self.max_running} sequences (max_running) fit at full length",
            "cap": f"{self.full_sequences} of {self.max_running} sequences fit at full length; kv_memory raises the "
            f"default of {format_bytes(DEFAULT_POOL)}",
            "memory": f"{self.full_sequences} of {self.max_running} sequences fit at full length; memory is the limit",
            "kv_memory": f"{self.full_sequences} of {self.max_running} sequences fit at full length (kv_memory)",
        }
        return reasons[self.pool_limit]


def plan_memory(model: Model | ModelShape, config: EngineConfig, available_bytes: int, *, draft: int = 0) -> MemoryPlan:
    """Fit a model and its KV pool into the memory there is, beside a draft model that takes ``draft`` bytes.

    Raises DoesNotFit, naming the setting to change and a value that fits, and ConfigError for a max_model_len above
    what the model was made for.
    """
    shape = model if isinstance(model, ModelShape) else ModelShape.of(model)
    return _Planner(shape, config, available_bytes, draft).plan()


def reserve_bytes(available: int) -> int:
    """What the plan leaves free: a twentieth of the memory, between 128 MiB and 2 GiB."""
    return min(max(available // 20, 128 * 2**20), 2 * 2**30)


def format_bytes(count: int) -> str:
    """Bytes for people: 3.8 GiB, 97 MiB."""
    size, units = float(abs(count)), ["B", "KiB", "MiB", "GiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    text = f"{size:.0f}" if units[0] == "B" or size >= 100 else f"{size:.1f}"
    return f"{'-' if count < 0 else ''}{text} {units[0]}"


def _blocks(tokens: int, block_size: int) -> int:
    return math.ceil(tokens / block_size)


class _Planner:
    """One planning run; holds what every step of it reads."""

    def __init__(self, shape: ModelShape, config: EngineConfig, available: int, draft: int) -> None:
        self._draft = draft
        self._shape = shape
        self._config = config
        self._available = available
        self._reserve = reserve_bytes(available)
        self._kv_format = KvFormat(config.executor.resolved_kv_format)
        self._kv_token = kv_bytes_per_token(shape.graph, self._kv_format)
        self._weights = weight_bytes(shape.graph, shape.formats)
        self._packed = self._packed_bytes()
        self._adapters = self._adapter_bytes()

    def plan(self) -> MemoryPlan:
        wanted = self._wanted_length()
        workspace = self._workspace(wanted)
        room = self._available - self._reserve - self._packed - self._adapters - workspace - self._draft
        sizes = self._sizes(wanted)
        if room < sizes.block_bytes:
            raise self._no_room(workspace, sizes.block_bytes)
        blocks, limit = self._pool(sizes, room, wanted)
        length = self._fitted_length(sizes, blocks, wanted, room)
        return MemoryPlan(
            model=self._shape.name,
            available=self._available,
            draft=self._draft,
            quantize=self._config.model.quantize,
            weights=self._weights,
            packed=self._packed,
            adapters=self._adapters,
            adapter_places=self._config.model.adapter_places,
            workspace=workspace,
            reserve=self._reserve,
            kv_format=self._kv_format,
            kv_bytes_per_token=self._kv_token,
            kv_formula=self._formula(),
            block_size=self._config.block_size,
            num_blocks=blocks,
            max_running=self._config.scheduler.max_running,
            max_model_len=length,
            model_max_len=wanted,
            pool_limit=limit,
            kv_groups=sizes.pools(blocks, length),
            whole=self._shape.graph.whole,
        )

    def _step_tokens(self, length: int) -> int:
        """Most tokens of a step; without chunks a whole prompt is one."""
        scheduler = self._config.scheduler
        whole = self._shape.graph.whole or not scheduler.chunked_prefill
        return max(scheduler.max_step_tokens, length) if whole else scheduler.max_step_tokens

    def _sizes(self, length: int) -> PoolSizes:
        return PoolSizes(
            self._shape.graph.kv_groups,
            block_size=self._config.block_size,
            kv_format=self._kv_format,
            length=length,
            step_tokens=self._step_tokens(length),
            reserve_steps=self._config.scheduler.kv_reservation == "contiguous",
        )

    def _wanted_length(self) -> int:
        """max_model_len if it is set, else the model's own."""
        asked, made_for = self._config.model.max_model_len, self._shape.max_position
        if asked is not None and asked > made_for:
            raise ConfigError(
                f"max_model_len is {asked}, but {self._shape.name} was made for {made_for} tokens; "
                f"set max_model_len to {made_for} or less",
                param="max_model_len",
            )
        return made_for if asked is None else asked

    def _packed_bytes(self) -> int:
        if self._config.executor.executor == "reference":  # keeps every weight as float64
            return sum(8 * math.prod(spec.shape) for spec in self._shape.graph.weights)
        from tidemill.executors.native.weights import packed_bytes

        packed = packed_bytes(self._shape.graph, self._shape.formats)
        return packed + self._rounded_tables() if self._config.model.quantize else packed

    def _adapter_bytes(self) -> int:
        """Those that are named as their files say, and the largest that may come in the places that are left."""
        model = self._config.model
        named = adapter_sources(model.lora)
        spare = model.adapter_places - len(named)
        size = 2 if self._config.executor.executor == "reference" else 1  # which computes in float64
        return size * (
            sum(stored_bytes(Path(source.path).expanduser()) for source in named)
            + spare * full_adapter_bytes(self._shape.graph, model.max_lora_rank)
        )

    def _rounded_tables(self) -> int:
        """Embeddings are read from the file's own pages, but rounded ones are in memory, beside a head that is tied."""
        graph = self._shape.graph
        tables = {node.weight for node in graph.nodes if isinstance(node, Embed)}
        return sum(
            math.prod(graph.spec(name).shape[:-1]) * self._shape.formats[name].row_bytes(graph.spec(name).shape[-1])
            for name in tables
        )

    def _workspace(self, length: int) -> int:
        scheduler = self._config.scheduler
        tokens = self._step_tokens(length)
        activations = WORKSPACE_SHARE * workspace_bytes(fuse(self._shape.graph), tokens, scheduler.max_outputs)
        executor = self._config.executor
        if executor.attention == "tiled" or executor.executor == "reference":  # the reference has a token's at a time
            return activations
        return activations + score_matrix_bytes(self._shape.graph, tokens, length)

    def _pool(self, sizes: PoolSizes, room: int, wanted: int) -> tuple[int, str]:
        """(blocks, what decided)."""
        asked = self._config.kv_memory
        if asked is not None:
            if asked > room:
                raise DoesNotFit(
                    f"kv_memory is {format_bytes(asked)}, and {format_bytes(room)} are left beside weights and "
                    f"workspace; set kv_memory to {room} or less",
                    param="kv_memory",
                )
            if asked < sizes.block_bytes:
                raise DoesNotFit(
                    f"kv_memory is {asked} bytes, less than one block of {self._config.block_size} tokens; "
                    f"set kv_memory to {sizes.block_bytes} or more",
                    param="kv_memory",
                )
            return sizes.within(asked), "kv_memory"
        one = _blocks(wanted, self._config.block_size)
        demand = self._demand(one, wanted)
        cap = max(sizes.within(DEFAULT_POOL), one)
        blocks = min(demand, cap, sizes.within(room))
        return blocks, "demand" if blocks == demand else "cap" if blocks == cap else "memory"

    def _demand(self, one: int, wanted: int) -> int:
        """Blocks with which nothing has to wait for others. What is computed whole holds blocks for one step alone:
        those of a step's tokens, of which each sequence may leave a part of a block unused."""
        running = self._config.scheduler.max_running
        if not self._shape.graph.whole:
            return one * running
        return max(one, _blocks(self._step_tokens(wanted), self._config.block_size) + running)

    def _fitted_length(self, sizes: PoolSizes, blocks: int, wanted: int, room: int) -> int:
        """wanted, or what the pool holds if that is less and the length may be reduced."""
        capacity = blocks * self._config.block_size
        if capacity >= wanted:
            return wanted
        if self._config.model.max_model_len is None:
            return capacity
        need = sizes.total_bytes(_blocks(wanted, self._config.block_size))
        if self._config.kv_memory is not None and need <= room:
            fix = f"set kv_memory to {need} or more, or max_model_len to {capacity} or less"
        else:
            fix = f"set max_model_len to {capacity} or less{self._smaller_format()}"
        raise DoesNotFit(
            f"max_model_len {wanted} needs {format_bytes(need)} of KV, and the pool has "
            f"{format_bytes(sizes.total_bytes(blocks))}; {fix}",
            param="max_model_len",
        )

    def _smaller_format(self) -> str:
        """A further fix: the next KV format, where that is smaller; heads of few numbers do not fill a group."""
        smaller = _SMALLER.get(self._kv_format)
        if smaller is None or kv_bytes_per_token(self._shape.graph, smaller) >= self._kv_token:
            return ""
        return f", or kv_format to {smaller}"

    def _no_room(self, workspace: int, block: int) -> DoesNotFit:
        """Weights and workspace alone are too much: say which of the two, and what helps."""
        need = self._packed + self._adapters + workspace + block
        left = self._available - self._reserve - self._draft
        adapters = f"{format_bytes(self._adapters)} adapters, " if self._adapters else ""
        text = (
            f"{self._shape.name} needs {format_bytes(need)} ({format_bytes(self._packed)} weights, {adapters}"
            f"{format_bytes(workspace)} workspace, one KV block), and {format_bytes(max(left, 0))} can be used of "
            f"{format_bytes(self._available)} available; "
        )
        if self._adapters and need - self._adapters < left:
            return DoesNotFit(text + "lower max_loras or max_lora_rank", param="max_loras")
        if self._packed + block < left:
            return DoesNotFit(text + "lower max_step_tokens or max_running", param="max_step_tokens")
        return DoesNotFit(text + "use a smaller or more strongly quantised model, or free memory", param="model")

    def _formula(self) -> str:
        return " + ".join(self._group_formulas())

    def _group_formulas(self) -> Iterator[str]:
        for group in self._shape.graph.kv_groups:
            units = group.head_dim if not self._kv_format.quantized else -(-group.head_dim // KV_GROUP)
            of = "head size" if not self._kv_format.quantized else f"groups of {KV_GROUP} of the head size"
            yield (
                f"2 (K, V) x {group.layers} layers x {group.kv_heads} KV heads x {units} {of} x "
                f"{self._kv_format.unit_bytes} bytes"
            )

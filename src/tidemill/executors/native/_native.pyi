"""The C++ module (csrc/bindings). An index of -1 means "none"; ``outputs``: a value's rows are drawn positions.

Raises ValueError for arguments that break a contract, RuntimeError for a machine that was closed.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

def supported_isas() -> list[str]:
    """Instruction sets this build has and this processor can run, best first."""

def refused_isas() -> dict[str, str]:
    """Those that the processor could run and the system does not let it, with the reason."""

CHECKSUM_KEY: int
"""Bytes of a checksum's key."""
PACKING_VERSION: int
"""Counts changes of the packed bytes."""

def checksum(data: npt.NDArray[np.uint8], key: bytes, mapped: bool, release: bool) -> bytes:
    """16 bytes. ``mapped``: the data is a read-only map of a file; ``release`` lets its pages go afterwards."""

def let_go(address: int, bytes: int) -> None:  # noqa: A002
    """Take bytes of a read-only map of a file out of resident memory. Other memory would lose its content."""

def measure_roof(isa: str, threads: int, bytes: int, seconds: float) -> tuple[float, float, float, str, str]:  # noqa: A002
    """Bytes read, float operations and byte operations per second, and the instructions counted for the last two."""

def round_rows(
    data: npt.NDArray[np.uint8],
    format: int,  # noqa: A002
    columns: int,
    to: int,
    out: npt.NDArray[np.uint8],
) -> bool:
    """Rounds rows of floats (formats as in csrc/kernels/linear.h) to q8_0 or q4_1 blocks in ``out``; False: a value is
    not finite, or too large."""

class Machine:
    def __init__(self, isa: str, threads: int, materialized: bool, row_variant: int) -> None: ...
    def add_matrices(
        self,
        data: npt.NDArray[np.uint8],
        format: int,  # noqa: A002
        count: int,
        n: int,
        k: int,
        mapped: bool,
    ) -> int:
        """Pack ``count`` matrices that lie one after another; the index of the first. ``mapped``: the data is a
        read-only map of a file, and its pages are let go."""

    def use_matrices(self, data: npt.NDArray[np.uint8], format: int, count: int, n: int, k: int) -> int:  # noqa: A002
        """Matrices as ``packed`` gave them, used in place."""

    @staticmethod
    def packed_bytes_of(format: int, count: int, n: int, k: int) -> int: ...  # noqa: A002
    def packed(self, index: int, count: int) -> npt.NDArray[np.uint8]:
        """The packed bytes of ``count`` matrices from ``index`` on: a view, valid until close."""

    def add_vector(self, data: npt.NDArray[np.float32]) -> int: ...
    def add_table(self, data: npt.NDArray[np.uint8], format: int, rows: int, columns: int) -> int: ...  # noqa: A002
    def add_rope(self, inv_freq: list[float], factor: float) -> int: ...
    def add_group(self, layers: int, kv_heads: int, head_dim: int, window: int) -> int:
        """``window``: positions that its layers look back on, 0 for all."""

    def add_slot(self, outputs: bool, float_width: int, quantized_width: int) -> int: ...
    def set_logits(self, slot: int, vocab: int) -> None: ...
    def set_vectors(self, slot: int, width: int, vocab: int, whole: bool) -> None:
        """The slot of a program that pools; ``whole``: sequences have to be computed in one step."""

    def set_positions(self, positions: int) -> None:
        """How many positions there are, where they are learned."""

    def add_target(self, inputs: int, outputs: int) -> int:
        """A weight that adapters may change."""

    def embed(self, table: int, out: int, width: int, by: str, offset: int) -> None: ...
    def layer_norm(
        self, x: int, weight: int, bias: int, eps: float, outputs: bool, width: int, out: int, out_quantized: int
    ) -> None: ...
    def activate(self, activation: str, x: int, outputs: bool, width: int, out: int, out_quantized: int) -> None: ...
    def rms_norm(
        self, x: int, weight: int, eps: float, outputs: bool, width: int, heads: int, out: int, out_quantized: int
    ) -> None: ...
    def glu(
        self, gelu_tanh: bool, gate: int, up: int, outputs: bool, width: int, out: int, out_quantized: int
    ) -> None: ...
    def quantize(self, x: int, outputs: bool, width: int, out: int) -> None: ...
    def linear(
        self,
        x: int,
        x_quantized: int,
        outputs: bool,
        in_width: int,
        out: int,
        out_width: int,
        residual: int,
        parts: Sequence[tuple[int, int, int, int, int]],
    ) -> None:
        """``parts``: per weight its matrix, first output column, bias, 1 if it multiplies the quantised input, and the
        target that adapters know it by."""

    def rope(self, x: int, heads: int, head_dim: int, rope: int, out: int) -> None: ...
    def attention(
        self,
        q: int,
        k: int,
        v: int,
        heads: int,
        group: int,
        layer: int,
        rope: int,
        scale: float,
        window: int,
        soft_cap: float,
        sinks: int,
        out: int,
        causal: bool,
    ) -> None:
        """``window`` and ``soft_cap``: 0 for none."""

    def moe(
        self,
        x: int,
        scores: int,
        width: int,
        inner: int,
        experts: int,
        chosen: int,
        normalized: bool,
        activation: int,
        alpha: float,
        limit: float,
        scale: float,
        weights: Sequence[tuple[int, int, int]],
        rows: int,
        rows_quantized: int,
        hidden: int,
        hidden_quantized: int,
        out: int,
    ) -> None:
        """``weights``: of gate, up and down the first expert's matrix, 1 if it multiplies quantised rows, and the bias.
        ``activation``: 0 silu, 1 gelu_tanh, 2 clamped, which has alpha and limit."""

    def add(self, a: int, b: int, outputs: bool, width: int, out: int) -> None: ...
    def scale(self, x: int, factor: float, outputs: bool, width: int, out: int) -> None: ...
    def sigmoid_gate(self, x: int, gate: int, outputs: bool, width: int, out: int) -> None: ...
    def soft_cap(self, x: int, cap: float, outputs: bool, width: int, out: int) -> None: ...
    def select(self, x: int, width: int, out: int) -> None: ...
    def pool(self, mode: str, x: int, width: int, out: int) -> None: ...
    def allocate_kv(self, group: int, num_blocks: int, block_size: int, kv_format: int) -> None: ...
    def add_adapter(
        self,
        number: int,
        parts: Sequence[tuple[int, npt.NDArray[np.float32], npt.NDArray[np.float32], float]],
    ) -> None:
        """``parts``: per weight its target, A [rank, inputs], B [outputs, rank], and the scale."""

    def drop_adapter(self, number: int) -> None: ...
    def submit(self, rows: Sequence[object], sample: bool, profile: bool = False) -> None: ...
    def stage_seconds(self) -> list[tuple[float, float]]:
        """Of the last profiled step: seconds worked and waited in each stage of csrc/executor/profile.h."""

    def collect(
        self,
    ) -> tuple[
        float,
        list[tuple[tuple[int, ...], tuple[tuple[int, float, tuple[tuple[int, float], ...]], ...] | None]],
    ]: ...
    def collect_logits(self) -> npt.NDArray[np.float32]: ...
    def copy_block(self, group: int, source: int, destination: int) -> None: ...
    def read_blocks(self, group: int, blocks: Sequence[int]) -> bytes: ...
    def write_blocks(self, group: int, blocks: Sequence[int], data: bytes) -> None: ...
    def workspace_bytes(self, tokens: int, outputs: int) -> int: ...
    def close(self) -> None: ...
    @property
    def seconds(self) -> float:
        """Of the last step."""

    @property
    def progress(self) -> int:
        """Instructions run since the start; also while a step runs."""
    @property
    def isa(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def packed_bytes(self) -> int: ...

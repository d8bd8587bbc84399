"""Which values share memory: slots of an arena, planned from the lifetimes of the values of a lowered graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidemill.graph.graph import Rows, Value

__all__ = ["Buffer", "Lifetime", "SlotSpec", "plan_slots"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """A value in one of its two forms: float rows, or rows rounded to 8 bits."""

    value: Value
    quantized: bool = False

    @property
    def row_bytes(self) -> int:
        """About how many bytes a row takes; exact sizes are the executor's."""
        return self.value.width * 5 // 4 if self.quantized else self.value.width * 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetime:
    """A buffer and the steps in which it holds its value: written in ``first``, read for the last time in ``last``."""

    buffer: Buffer
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSpec:
    """One slot: the widest value of each form that it holds, 0 if none."""

    rows: Rows
    float_width: int
    quantized_width: int


def plan_slots(lifetimes: Sequence[Lifetime]) -> tuple[tuple[SlotSpec, ...], Mapping[Buffer, int]]:
    """Give each buffer a slot that no other buffer holds while it lives.

    Lifetimes are in the order of ``first``. A slot is taken again in the step after its value's last one, never in the
    same: an operation's output must not lie where it still reads. The free slot that fits best is taken, else the
    largest is widened.
    """
    slots: list[_Slot] = []
    index: dict[Buffer, int] = {}
    for lifetime in lifetimes:
        buffer = lifetime.buffer
        free = [i for i, slot in enumerate(slots) if slot.rows is buffer.value.rows and slot.until < lifetime.first]
        chosen = _best_fit(slots, free, buffer.row_bytes)
        if chosen is None:
            slots.append(_Slot(rows=buffer.value.rows))
            chosen = len(slots) - 1
        slots[chosen].hold(lifetime)
        index[buffer] = chosen
    specs = tuple(
        SlotSpec(rows=slot.rows, float_width=slot.float_width, quantized_width=slot.quantized_width) for slot in slots
    )
    return specs, index


@dataclass(slots=True, kw_only=True)
class _Slot:
    rows: Rows
    float_width: int = 0
    quantized_width: int = 0
    row_bytes: int = 0
    until: int = -1

    def hold(self, lifetime: Lifetime) -> None:
        buffer = lifetime.buffer
        if buffer.quantized:
            self.quantized_width = max(self.quantized_width, buffer.value.width)
        else:
            self.float_width = max(self.float_width, buffer.value.width)
        self.row_bytes = max(self.row_bytes, buffer.row_bytes)
        self.until = lifetime.last


def _best_fit(slots: Sequence[_Slot], free: Sequence[int], row_bytes: int) -> int | None:
    fitting = [i for i in free if slots[i].row_bytes >= row_bytes]
    if fitting:
        return min(fitting, key=lambda i: slots[i].row_bytes)
    return max(free, key=lambda i: slots[i].row_bytes, default=None)

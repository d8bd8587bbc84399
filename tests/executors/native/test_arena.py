"""Slots: values that live at the same time never share one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidemill.executors.native.arena import Buffer, Lifetime, plan_slots
from tidemill.graph.graph import Rows, Value, ValueId


def buffer(number: int, width: int = 8, rows: Rows = Rows.TOKENS, *, quantized: bool = False) -> Buffer:
    return Buffer(value=Value(id=ValueId(number), width=width, rows=rows), quantized=quantized)


def test_a_chain_needs_two_slots() -> None:
    """Each step reads what the one before wrote: the output may not lie on the input, the value before that is free."""
    specs, slots = plan_slots([Lifetime(buffer=buffer(i), first=i, last=i + 1) for i in range(6)])
    assert [slots[buffer(i)] for i in range(6)] == [0, 1, 0, 1, 0, 1]
    assert [spec.float_width for spec in specs] == [8, 8]


def test_the_best_fitting_slot_is_taken_and_the_largest_widened() -> None:
    lifetimes = [
        Lifetime(buffer=buffer(0, 100), first=0, last=1),
        Lifetime(buffer=buffer(1, 10), first=0, last=1),
        Lifetime(buffer=buffer(2, 9), first=2, last=3),  # fits slot 1 better than slot 0
        Lifetime(buffer=buffer(3, 200), first=2, last=3),  # fits none: widens slot 0
    ]
    specs, slots = plan_slots(lifetimes)
    assert [slots[item.buffer] for item in lifetimes] == [0, 1, 1, 0]
    assert [spec.float_width for spec in specs] == [200, 10]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 5), st.integers(0, 9), st.integers(1, 500), st.sampled_from(list(Rows)), st.booleans()
        ),
        max_size=40,
    )
)
def test_no_two_living_values_share_a_slot(drawn: list[tuple[int, int, int, Rows, bool]]) -> None:
    lifetimes = []
    at = 0
    for number, (gap, length, width, rows, quantized) in enumerate(drawn):
        at += gap
        item = buffer(number, width, rows, quantized=quantized)
        lifetimes.append(Lifetime(buffer=item, first=at, last=at + length))
    specs, slots = plan_slots(lifetimes)
    for i, one in enumerate(lifetimes):
        spec = specs[slots[one.buffer]]
        assert spec.rows is one.buffer.value.rows
        assert one.buffer.value.width <= (spec.quantized_width if one.buffer.quantized else spec.float_width)
        for other in lifetimes[:i]:
            if slots[one.buffer] == slots[other.buffer]:
                assert other.last < one.first

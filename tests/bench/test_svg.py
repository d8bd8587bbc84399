"""Charts: axes put values where they belong, ticks are round, and everything drawn is well-formed and inside."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bench.traces.made import blocks, poisson, requests, talks
from tidemill.bench.svg import Axis, Panel, Svg, short
from tidemill.bench.traces.plot import traces_svg
from tidemill.bench.traces.row import TraceRow
from tidemill.bench.traces.trace import Trace


def test_axes() -> None:
    assert [Axis(0, 50).at(value) for value in (-1, 0, 25, 50, 99)] == [0, 0, 0.5, 1, 1]
    log = Axis.decades([0.0, 3.0, 250.0])
    assert (log.low, log.high) == (1.0, 1000.0)
    assert [log.at(value) for value in (0.0, 1.0, 1000.0)] == [0, 0, 1]
    assert log.at(10) == pytest.approx(1 / 3)
    assert Axis.decades([0.05, 0.5]).at(0.1) == pytest.approx(0.5)
    assert log.ticks() == [1, 10, 100, 1000]
    assert log.ticks(2) == [1, 100]
    assert Axis.decades([]).ticks() == [1, 10]
    assert Axis(0, 3537 / 60).ticks() == [0, 10, 20, 30, 40, 50]
    assert Axis(0, 1).ticks(5) == [0, 0.2, 0.4, 0.6, 0.8, 1]


@given(low=st.floats(-1e6, 1e6), span=st.floats(1e-3, 1e9), most=st.integers(2, 20))
@settings(deadline=None)
def test_ticks_are_few_and_inside(low: float, span: float, most: int) -> None:
    axis = Axis(low, low + span)
    ticks = axis.ticks(most)
    assert len(ticks) <= most + 1
    assert all(low - 1e-6 * span <= tick <= low + span + 1e-6 * span for tick in ticks)


def test_numbers_of_ticks() -> None:
    assert [short(value) for value in (0.0, 0.01, 5.0, 5000.0, 2.5e6, 1e-6, 1e9)] == [
        "0",
        "0.01",
        "5",
        "5k",
        "2.5M",
        "10⁻⁶",
        "1G",
    ]


def test_panels_turn_values_into_pixels() -> None:
    svg = Svg(200, 100, label="a & b")
    panel = Panel(svg=svg, left=50, top=10, width=100, height=50, across=Axis(0, 10), up=Axis(0, 1))
    panel.grid(title="<t>", across="x", up="y", percent=True)
    panel.curve([(0, 0), (5, 1), (10, 0.5)], colour="#123456", dash="2 3")
    text = svg.render()
    assert "<polyline points='50.0,60.0 100.0,10.0 150.0,35.0' fill='none' stroke='#123456'" in text
    root = ElementTree.fromstring(text)
    assert root.attrib["aria-label"] == "a & b"
    words = [item.text for item in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"<t>", "x", "y", "0%", "100%", "10"} <= set(words)


def test_traces_of_any_kind_are_drawn() -> None:
    one = Trace(rows=(TraceRow(at=0.0, prompt_tokens=1, output_tokens=1),), name="<one> & only " * 9, format="tidemill")
    for traces in ([one], [requests([0.0] * 20)], [requests(poisson(1, 50)), talks(20), blocks(50), one]):
        text = traces_svg(traces, block=64)
        root = ElementTree.fromstring(text)
        width, height = map(int, root.attrib["viewBox"].split()[2:])
        numbers = re.findall(r"points='([^']*)'", text)
        assert len(numbers) >= 5 * len(traces)
        for x, y in (pair.split(",") for points in numbers for pair in points.split()):
            assert 0 <= float(x) <= width
            assert 0 <= float(y) <= height


def test_the_curve_of_lengths_is_their_distribution() -> None:
    """Half of the prompts have 10 tokens and half 1,000: the curve steps at a third of the axis from 10 to 10,000."""
    rows = tuple(TraceRow(at=float(at), prompt_tokens=10 if at % 2 else 1000, output_tokens=5) for at in range(100))
    text = traces_svg([Trace(rows=rows, name="n", format="tidemill")])
    prompts = re.findall(r"points='([^']*)'", text)[2]  # after the legend and the arrivals
    pixels = [tuple(map(float, pair.split(","))) for pair in prompts.split()]
    left, right = min(x for x, _ in pixels), max(x for x, _ in pixels)
    at_left = [y for x, y in pixels if x == left]
    at_right = [y for x, y in pixels if x == right]
    assert len(at_left) + len(at_right) >= len(pixels) - 1
    assert len(at_left) == pytest.approx(len(at_right), abs=2)
    assert max(at_left) - min(at_left) == pytest.approx(88, abs=2)  # half of the panel's 176 pixels

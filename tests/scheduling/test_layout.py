"""Which blocks a window still reaches, against the definition: position by position."""

from __future__ import annotations

import pytest

from tidemill.scheduling.kv.layout import BlockLayout


def read(window: int, position: int) -> range:
    return range(max(0, position - window + 1), position + 1)


def test_window_8_in_blocks_of_4() -> None:
    layout = BlockLayout(block_size=4, window=8)
    # Token 10 reads 3 .. 10, token 11 reads 4 .. 11: block 0 is passed when 11 tokens are computed.
    assert [layout.first(computed) for computed in (0, 8, 10, 11, 14, 15, 40)] == [0, 0, 0, 1, 1, 2, 8]
    assert [layout.peak(1000, step) for step in (1, 2, 5, 6, 16)] == [3, 3, 4, 4, 7]
    assert [layout.peak(tokens, 1) for tokens in (1, 4, 5, 9, 12, 13)] == [1, 1, 2, 3, 3, 3]


def test_without_a_window_everything_stays() -> None:
    layout = BlockLayout(block_size=4)
    assert (layout.first(1000), layout.peak(1000, 1), layout.peak(1000, 500)) == (0, 250, 250)


@pytest.mark.parametrize("block_size", [1, 2, 3, 4])
@pytest.mark.parametrize("window", [1, 2, 3, 4, 5, 8, 9])
def test_first_and_peak_are_those_of_the_definition(block_size: int, window: int) -> None:
    layout = BlockLayout(block_size=block_size, window=window)
    for computed in range(40):
        still_read = {p // block_size for future in range(computed, 60) for p in read(window, future)}
        assert layout.first(computed) == min(still_read)
    for step in (1, 2, 3, 7):
        needed = [
            len({p // block_size for position in range(start, start + step) for p in read(window, position)})
            for start in range(60)
        ]
        assert layout.peak(10**6, step) == max(needed)


@pytest.mark.parametrize("sizes", [{"block_size": 0}, {"block_size": 4, "window": 0}])
def test_sizes_below_one_are_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        BlockLayout(**sizes)

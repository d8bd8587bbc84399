"""What stored weights mean: every block format against the gguf package, bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tidemill.graph.formats import WeightFormat, WeightTensor, block_parts, dequantize

GOLDEN = Path(__file__).parents[1] / "golden" / "data" / "blocks.npz"
BLOCK_FORMATS = [format_ for format_ in WeightFormat if format_.quantized]


def tensor_of(format_: WeightFormat, blocks: np.ndarray) -> WeightTensor:
    shape = (len(blocks), format_.block_values)
    return WeightTensor(name="w", format=format_, shape=shape, data=blocks.reshape(-1))


@pytest.mark.parametrize("format_", BLOCK_FORMATS)
def test_values_are_those_of_the_gguf_package(format_: WeightFormat) -> None:
    """Random bytes, all zeros, all ones, the smallest and the largest scales."""
    with np.load(GOLDEN) as golden:
        blocks, expected = golden[format_], golden[f"{format_}_values"]
    found = dequantize(tensor_of(format_, blocks))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected)
    assert np.isfinite(expected).all()
    assert len(np.unique(expected)) > 100


def test_the_golden_file_has_every_block_format_and_no_other() -> None:
    with np.load(GOLDEN) as golden:
        assert {key for key in golden if not key.endswith("_values")} == set(BLOCK_FORMATS)


@pytest.mark.parametrize("format_", BLOCK_FORMATS)
def test_parts_are_whole_numbers_of_eight_bits_per_16_or_32_values(format_: WeightFormat) -> None:
    with np.load(GOLDEN) as golden:
        parts = block_parts(tensor_of(format_, golden[format_]))
    groups = 16 if format_ in {WeightFormat.Q6_K, WeightFormat.Q3_K, WeightFormat.Q2_K} else 32
    assert parts.integers.dtype == np.int8
    assert parts.integers.shape[2] == groups
    assert parts.scale.shape == parts.integers.shape[:2]


def test_a_row_that_is_not_whole_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="96 columns are not whole blocks of 256"):
        WeightFormat.Q4_K.row_bytes(96)

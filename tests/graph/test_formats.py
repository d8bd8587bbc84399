"""What stored weights mean: GGUF's block formats against the gguf package, ours against their formulas, bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tidemill.graph.formats import WeightFormat, WeightTensor, block_parts, dequantize

GOLDEN = Path(__file__).parents[1] / "golden" / "data" / "blocks.npz"
BLOCK_FORMATS = [format_ for format_ in WeightFormat if format_.quantized and format_ is not WeightFormat.Q4_Z]


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


def test_the_golden_file_has_every_block_format_of_gguf_and_no_other() -> None:
    with np.load(GOLDEN) as golden:
        assert {key for key in golden if not key.endswith("_values")} == set(BLOCK_FORMATS)


def test_a_four_bit_code_less_its_zero_times_the_scale() -> None:
    """Every code with every zero, and scales of all 11 bits: (n - z) * d is exact in float32."""
    nibbles = np.array([[low | low + 1 << 4 for low in range(0, 16, 2)] * 2], np.uint8)
    codes = np.concatenate([nibbles & 15, nibbles >> 4], axis=1).astype(np.float64)
    for zero in range(17):
        for d in (np.float16(0.0309), np.float16(-1.7e-5), np.float16(6e-8), np.float16(65504)):
            head = np.frombuffer(d.tobytes() + bytes([zero]), np.uint8)[None]
            found = dequantize(tensor_of(WeightFormat.Q4_Z, np.concatenate([head, nibbles], axis=1)))
            np.testing.assert_array_equal(found.astype(np.float64), (codes - zero) * np.float64(d))


def test_eight_bit_floats() -> None:
    """All 254 numbers (sign, 4 bits of exponent, 3 of mantissa), times a scale, rounded once to float32."""
    codes = np.array([code for code in range(256) if code & 127 != 127] + [0, 0], np.uint8)
    scale = np.float32(0.0123456)
    head = np.repeat(np.frombuffer(scale.tobytes(), np.uint8)[None], 8, axis=0)
    found = dequantize(tensor_of(WeightFormat.F8_E4M3, np.concatenate([head, codes.reshape(8, 32)], axis=1)))
    for code, value in zip(codes.tolist(), found.reshape(-1).tolist(), strict=True):
        exponent, mantissa = code >> 3 & 15, code & 7
        size = mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)
        assert value == float(np.float32((-size if code > 127 else size) * float(scale)))
    assert found.max() == np.float32(448 * float(scale))


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

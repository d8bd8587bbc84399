"""Linear layers of the reference: exact products, and the 8-bit activations of the fast kernels number by number."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.executors.reference.linear import Matrix, quantized_rows
from tidemill.graph.formats import WeightFormat, WeightTensor, dequantize

QUANTIZED = (WeightFormat.Q4_0, WeightFormat.Q4_1, WeightFormat.Q8_0)


def random_tensor(stored_as: WeightFormat, rows: int, columns: int, seed: int = 0) -> WeightTensor:
    rng = np.random.default_rng(seed)
    if not stored_as.quantized:
        values = rng.standard_normal((rows, columns)).astype("<f4")
        data = {
            WeightFormat.F32: values.view(np.uint8),
            WeightFormat.F16: values.astype("<f2").view(np.uint8),
            WeightFormat.BF16: (values.view("<u4") >> 16).astype("<u2").view(np.uint8),
        }[stored_as]
        return WeightTensor(name="w", format=stored_as, shape=(rows, columns), data=data.reshape(-1))
    blocks = rng.integers(0, 256, (rows * columns // 32, stored_as.block_bytes), np.uint8)
    scales = (4 if stored_as is WeightFormat.Q4_1 else 2) // 2
    blocks[:, : 2 * scales] = rng.uniform(-0.5, 0.5, (len(blocks), scales)).astype("<f2").view(np.uint8)
    return WeightTensor(name="w", format=stored_as, shape=(rows, columns), data=blocks.reshape(-1))


@pytest.mark.parametrize("stored_as", list(WeightFormat))
def test_exact_products_are_those_of_the_dequantised_values(stored_as: WeightFormat) -> None:
    tensor = random_tensor(stored_as, 7, 64)
    x = np.random.default_rng(1).standard_normal((33, 64))
    expected = np.einsum("tk,nk->tn", x, dequantize(tensor).astype(np.float64))
    np.testing.assert_allclose(Matrix(tensor, "exact").times(x), expected, rtol=1e-12, atol=1e-12)


def test_activations_are_rounded_per_row_and_group() -> None:
    """Peak 254 gives scale 2: 1 and 3 lie half-way and go to the even 0 and 2; the second group has its own scale."""
    x = np.zeros((1, 64), np.float32)
    x[0, :5] = 254, -254, 1, 3, 7
    x[0, 32:34] = 12.7, -0.1
    values, scales = quantized_rows(x)
    assert values[0, 0, :5].tolist() == [127, -127, 0, 2, 4]
    assert values[0, 1, :2].tolist() == [127, -1]
    assert scales.dtype == np.float32
    assert scales[0].tolist() == [2.0, np.float32(12.7) / np.float32(127)]


def test_tiny_groups_become_zero_and_broken_ones_nan() -> None:
    x = np.zeros((4, 32), np.float32)
    x[0, 3] = 2.0**-101
    x[1, 3] = np.nan
    x[2, 3] = -np.inf
    x[3, 3] = 2.0**-100
    values, scales = quantized_rows(x)
    assert not values[:3].any()
    assert values[3, 0, 3] == 127
    assert scales[0] == 0
    assert np.isnan(scales[1:3]).all()


@pytest.mark.parametrize("stored_as", QUANTIZED)
def test_fast_products_have_the_kernels_integers(stored_as: WeightFormat) -> None:
    """Against plain loops over the integers of the blocks: value = n * d + m."""
    tensor = random_tensor(stored_as, 3, 64)
    x = np.random.default_rng(1).standard_normal((2, 64)).astype(np.float32)
    values, scales = quantized_rows(x)
    out = Matrix(tensor, "fast").times(x.astype(np.float64))
    for row in range(2):
        for output in range(3):
            total = 0.0
            for group in range(2):
                block = tensor.rows[output].reshape(2, -1)[group]
                integers, d, m = block_parts(stored_as, block)
                v = [int(value) for value in values[row, group]]
                scale = float(scales[row, group])
                total += sum(n * a for n, a in zip(integers, v, strict=True)) * d * scale + m * scale * sum(v)
            assert out[row, output] == pytest.approx(total, rel=1e-12, abs=1e-12)


def block_parts(stored_as: WeightFormat, block: np.ndarray) -> tuple[list[int], float, float]:
    d = float(block[:2].copy().view("<f2")[0])
    if stored_as is WeightFormat.Q8_0:
        return [int(b) - 256 * (b > 127) for b in block[2:]], d, 0.0
    begin = 4 if stored_as is WeightFormat.Q4_1 else 2
    m = float(block[2:4].copy().view("<f2")[0]) if stored_as is WeightFormat.Q4_1 else -8 * d
    return [int(b) & 15 for b in block[begin:]] + [int(b) >> 4 for b in block[begin:]], d, m


@pytest.mark.parametrize("stored_as", QUANTIZED)
def test_fast_is_close_to_exact_but_not_equal(stored_as: WeightFormat) -> None:
    tensor = random_tensor(stored_as, 16, 256)
    x = np.random.default_rng(1).standard_normal((4, 256))
    fast, exact = Matrix(tensor, "fast").times(x), Matrix(tensor, "exact").times(x)
    error = np.abs(fast - exact).mean() / np.abs(exact).mean()
    assert 1e-4 < error < 0.03


def test_formats_that_are_not_blocks_stay_exact_in_fast_mode() -> None:
    tensor = random_tensor(WeightFormat.BF16, 5, 64)
    x = np.random.default_rng(1).standard_normal((3, 64))
    np.testing.assert_array_equal(Matrix(tensor, "fast").times(x), Matrix(tensor, "exact").times(x))


@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(1, 40), columns=st.sampled_from([32, 96, 160]), fast=st.booleans(), data=st.data(),
)  # fmt: skip
def test_a_row_has_the_same_bits_alone_and_among_others(
    rows: int, columns: int, fast: bool, data: st.DataObject
) -> None:
    matrix = Matrix(random_tensor(WeightFormat.Q4_1, 48, columns), "fast" if fast else "exact")
    x = np.random.default_rng(rows).standard_normal((rows, columns))
    begin = data.draw(st.integers(0, rows - 1))
    end = data.draw(st.integers(begin + 1, rows))
    np.testing.assert_array_equal(matrix.times(x[begin:end]), matrix.times(x)[begin:end])

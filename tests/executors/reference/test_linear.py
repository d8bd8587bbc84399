"""Linear layers of the reference: exact products, and the 8-bit activations of the fast kernels number by number."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.tiny import encode
from tidemill.executors.reference.linear import Matrix, quantized_rows
from tidemill.graph.formats import WeightFormat, WeightTensor, dequantize

QUANTIZED = tuple(format_ for format_ in WeightFormat if format_.quantized)


def random_tensor(stored_as: WeightFormat, rows: int, columns: int, seed: int = 0) -> WeightTensor:
    values = np.random.default_rng(seed).standard_normal((rows, columns)).astype("<f4")
    return encode("w", values, stored_as)


@pytest.mark.parametrize("stored_as", list(WeightFormat))
def test_exact_products_are_those_of_the_dequantised_values(stored_as: WeightFormat) -> None:
    tensor = random_tensor(stored_as, 7, 256)
    x = np.random.default_rng(1).standard_normal((33, 256))
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
    """The dequantised weights times what the 8-bit activations stand for, whatever the order of the sums."""
    tensor = random_tensor(stored_as, 3, 256)
    x = np.random.default_rng(1).standard_normal((2, 256)).astype(np.float32)
    values, scales = quantized_rows(x)
    rounded = (values.astype(np.float64) * scales[:, :, None]).reshape(2, 256)
    expected = rounded @ dequantize(tensor).astype(np.float64).T
    # Values with a minimum are rounded to float32 in dequantize, and not in the kernels.
    np.testing.assert_allclose(Matrix(tensor, "fast").times(x.astype(np.float64)), expected, rtol=0, atol=3e-6)


def test_half_groups_have_their_own_scales() -> None:
    """q6_k by hand: codes of 33 are 1 above the offset; the scales of the last two half groups are 3 and -5."""
    scales = np.zeros(16, np.int8)
    scales[14:] = 3, -5
    block = np.concatenate(
        [np.full(128, 0x11, np.uint8), np.full(64, 0xAA, np.uint8), scales.view(np.uint8), [0, 0x3C]]  # f16 1.0
    ).astype(np.uint8)
    tensor = WeightTensor(name="w", format=WeightFormat.Q6_K, shape=(1, 256), data=block)
    x = np.zeros((1, 256))
    x[0, 224:240], x[0, 240:] = 127, 1  # scale 1: the activations are whole numbers already
    assert Matrix(tensor, "fast").times(x)[0, 0] == 3 * 16 * 127 - 5 * 16


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

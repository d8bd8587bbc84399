"""The packed bytes of every format are those of the packing version: whoever changes them has to count it up.

Caches of packed weights hold bytes of earlier builds. If this fails, raise kPackingVersion in csrc/kernels/linear.h and
write the new sums here.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from tidemill.executors.native._native import PACKING_VERSION, Machine
from tidemill.executors.native.weights import _FILE_FORMAT
from tidemill.graph.formats import WeightFormat

VERSION = 1
SUMS = {
    WeightFormat.F32: "04b4d58a260f8c7a",
    WeightFormat.F16: "45a972da59a77ec7",
    WeightFormat.BF16: "bbc5e09f45c5b6a5",
    WeightFormat.Q4_0: "290f3c42ec3c35c0",
    WeightFormat.Q4_1: "ff2d196448468116",
    WeightFormat.Q8_0: "99ff3e9e4bccdd5e",
    WeightFormat.Q4_K: "333dfa62ea8ece19",
    WeightFormat.Q6_K: "9c5850952587ab2b",
    WeightFormat.Q5_K: "160f4e2cb884414f",
    WeightFormat.Q5_0: "19aa2de154e16061",
    WeightFormat.Q5_1: "39c3d4caa266badd",
    WeightFormat.Q3_K: "3d88f09512aeba79",
    WeightFormat.Q2_K: "5349815c83b65d14",
    WeightFormat.IQ4_NL: "290f3c42ec3c35c0",
    WeightFormat.MXFP4: "cc358d919b8efde7",
    WeightFormat.Q4_Z: "fc424394fffb3884",
    WeightFormat.F8_E4M3: "e7dd1b46304ba499",
}


def packed_sum(format_: WeightFormat) -> str:
    """Of two stacked matrices [20, 512] of seeded random bytes."""
    n, k = 20, 512
    data = np.random.default_rng(9).integers(0, 256, 2 * n * format_.row_bytes(k), dtype=np.uint8)
    machine = Machine(isa="auto", threads=1, materialized=False, row_variant=0)
    index = machine.add_matrices(data, _FILE_FORMAT[format_], 2, n, k, False)
    found = hashlib.sha256(machine.packed(index, 2).tobytes()).hexdigest()[:16]
    machine.close()
    return found


@pytest.mark.parametrize("format_", list(WeightFormat), ids=str)
def test_packed_bytes_belong_to_the_version(format_: WeightFormat) -> None:
    assert (PACKING_VERSION, packed_sum(format_)) == (VERSION, SUMS[format_])

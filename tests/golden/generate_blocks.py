"""Blocks of random bytes in every GGUF block format, and the values that the gguf package reads from them.

Run by a Python that has gguf (``make golden``); no part of the package is used.

    python tests/golden/generate_blocks.py [--check]

Writes data/blocks.npz: for each format its blocks, as bytes, and ``<format>_values``. The first blocks are extremes:
all zeros, all ones, the smallest and the largest scales.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

PATH = Path(__file__).parent / "data" / "blocks.npz"
# Where a block has its f16; mxfp4 has a power of two instead.
HALVES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "IQ4_NL": (0,), "MXFP4": (),
    "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
}  # fmt: skip
EXTREMES = (0x0000, 0x0001, 0x83FF, 0x7BFF, 0xFBFF)
"""f16: zero, the smallest and the largest subnormal one, the largest of both signs."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with what is there")
    made = arrays()
    if parser.parse_args().check:
        before = np.load(PATH)
        assert set(before) == set(made)
        for key, value in made.items():
            assert before[key].tobytes() == value.tobytes(), f"{key} differs"
    else:
        np.savez_compressed(PATH, **made)
    return 0


def arrays() -> dict[str, npt.NDArray[np.generic]]:
    made: dict[str, npt.NDArray[np.generic]] = {}
    for seed, name in enumerate(HALVES):
        kind = GGMLQuantizationType[name]
        per_block, size = GGML_QUANT_SIZES[kind]
        blocks = random_blocks(name, 12 if per_block == 256 else 40, size, np.random.default_rng(seed))
        made[name.lower()] = blocks
        made[f"{name.lower()}_values"] = gguf.quants.dequantize(blocks, kind).astype(np.float32)
    return made


def random_blocks(name: str, count: int, size: int, random: np.random.Generator) -> npt.NDArray[np.uint8]:
    """Bytes of any value, with scales that are numbers."""
    blocks = random.integers(0, 256, (count, size), np.uint8)
    blocks[0], blocks[1] = 0, 255
    for place in HALVES[name]:
        halves = random.normal(0, 0.1, count).astype("<f2")
        halves[: len(EXTREMES)] = np.array(EXTREMES, np.uint16).view("<f2")
        blocks[:, place : place + 2] = halves.view(np.uint8).reshape(-1, 2)
    if name == "MXFP4":  # above 251 values are not floats
        blocks[:, 0] = [0, 251, 1, 2, 3, *random.integers(0, 252, count - 5)]
    return blocks


if __name__ == "__main__":
    sys.exit(main())

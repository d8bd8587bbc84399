"""The instruction sets that a test runs on, each skipped where the processor does not have it."""

from typing import get_args, get_type_hints

import pytest

from tidemill.core.config import ExecutorConfig
from tidemill.executors.native._native import supported_isas

EVERY_ISA = [
    pytest.param(
        isa, marks=pytest.mark.skipif(isa not in supported_isas(), reason=f"this processor does not run {isa}")
    )
    for isa in get_args(get_type_hints(ExecutorConfig)["isa"])
    if isa != "auto"
]
"""For ``pytest.mark.parametrize("isa", EVERY_ISA)``: all the kernels there are, whatever this machine runs."""

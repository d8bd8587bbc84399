"""Servers for other people's clients: what they run against is what people run, in processes of their own."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.e2e.server import PYTHON, Server, serving

GOLDEN = Path(__file__).parents[1] / "golden" / "data"
MODEL = GOLDEN / "tide_chat"
EMBEDDER = GOLDEN / "bert"
MAX_BODY = 64 * 1024
HELD_UP = {"messages": [{"role": "user", "content": "Hello"}], "n": 128, "max_tokens": 1900, "ignore_eos": True}
"""More than the buffers of a connection hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tour:
    """A server that asks for keys, and the keys."""

    server: Server
    key: str
    """Of a user without limits."""
    frugal: str
    """Of a user who owes the tokens of the next hour."""

    @property
    def url(self) -> str:
        """Of OpenAI's routes."""
        return f"{self.server.url}/v1"


def new_key(file: Path, name: str, *options: str) -> str:
    """A key, made as an operator makes it."""
    command = [PYTHON, "-m", "tidemill.cli", "keys", "add", name, "--keys-file", str(file), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("clients")


@pytest.fixture(scope="session")
def tour(folder: Path) -> Iterator[Tour]:
    """The chat model, with exact numerics, so that its answers are those of transformers."""
    file = folder / "keys.jsonl"
    key, frugal = new_key(file, "tour"), new_key(file, "frugal", "--tokens-per-minute", "30")
    arguments = ("--keys-file", str(file), "--max-body-bytes", str(MAX_BODY), "--numerics", "exact", "--threads", "1")
    with serving(MODEL, folder / "tour.log", *arguments, key=key) as server:
        hello = {"messages": [{"role": "user", "content": "Hello"}], "ignore_eos": True}
        api, bearer = f"{server.url}/v1/chat/completions", {"authorization": f"Bearer {frugal}"}
        assert httpx.post(api, json=hello, headers=bearer, timeout=60).status_code == 200
        yield Tour(server=server, key=key, frugal=frugal)


@pytest.fixture(scope="session")
def embedder(folder: Path) -> Iterator[Server]:
    """A model that embeds; its server asks for no key."""
    with serving(EMBEDDER, folder / "embedder.log", "--numerics", "exact", "--threads", "1") as server:
        yield server


@pytest.fixture(scope="session")
def slow(folder: Path) -> Iterator[Server]:
    """The same model on the oracle, which needs some ten seconds for an answer as long as it can be."""
    with serving(MODEL, folder / "slow.log", "--executor", "reference") as server:
        # A counter is exported once it has counted.
        hello = {"prompt": "Hello", "max_tokens": 1}
        assert httpx.post(f"{server.url}/v1/completions", json=hello, timeout=60).status_code == 200
        yield server


def ended_early(server: Server) -> float:
    """How many answers were ended because their callers had gone."""
    return server.metric("tidemill_finished_choices_total", 'reason="abort"')


def wait_for_one_more(server: Server, before: float) -> None:
    """Wait until nothing runs; one more answer than before must have been ended early."""
    server.wait_until("idle")
    assert ended_early(server) == before + 1


@pytest.fixture(scope="session")
def stopping(folder: Path) -> Iterator[Server]:
    """A server that has been told to stop, and is kept from it by a caller who reads nothing of a long answer."""
    patience = ("--drain-seconds", "600", "--slow-reader-seconds", "600", "--threads", "1")
    with (
        serving(MODEL, folder / "stopping.log", *patience) as server,
        httpx.stream("POST", f"{server.url}/v1/chat/completions", json={**HELD_UP, "stream": True}, timeout=60) as held,
    ):
        assert held.status_code == 200
        assert httpx.post(f"{server.url}/drain").json()["active"] == 1
        yield server

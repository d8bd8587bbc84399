"""Which engines are installed, and the settings worth trying of each.

Found by what was named, else by environment variables, else on PATH or in this interpreter:

    TIDEMILL_BENCH_LLAMA    llama-server, or folders with one; several builds separated by ":"
    TIDEMILL_BENCH_PYTHON   interpreters that can import openvino_genai, vllm, or torch and transformers
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tidemill.core.errors import ConfigError

__all__ = ["ENGINES", "OURS", "Peer", "Search", "installed", "ourselves"]

ENGINES: Final = ("llama-server", "vllm", "openvino-genai", "transformers")
OURS: Final = "tidemill"
_DRIVERS: Final = Path(__file__).parent / "drivers"
_NAME: Final = "peer"
"""What each server calls its model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One engine with one set of settings."""

    engine: str
    settings: str
    """In a few words; empty: there is nothing to set."""
    command: Callable[[int], Sequence[str]]
    """Of a port."""
    ready: str = "/health"
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Engine and settings."""
        return f"{self.engine} {self.settings}".strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Where to look, and what servers must be able to do."""

    model: str
    threads: int
    streams: int
    """Sequences at a time."""
    context: int
    """Tokens of the longest sequence."""
    llama: Sequence[str] = ()
    pythons: Sequence[str] = ()
    only: Sequence[str] = ENGINES

    def __post_init__(self) -> None:
        for name in self.only:
            if name not in ENGINES:
                raise ConfigError(f"only: there is no {name}; there are {', '.join(ENGINES)}", param="only")


def ourselves(search: Search) -> list[Peer]:
    """Tidemill with its defaults, and with smaller steps, which keep the time between tokens even."""
    return [_ours(search, settings) for settings in ("", "--max-step-tokens 256", "--max-step-tokens 128")]


def _ours(search: Search, settings: str) -> Peer:
    def command(port: int) -> list[str]:
        return [
            sys.executable, "-m", "tidemill.cli", "serve", search.model, "--port", str(port), "--name", _NAME,
            "--threads", str(search.threads), *settings.split(),
        ]  # fmt: skip

    return Peer(engine=OURS, settings=settings, command=command, ready="/ready")


def installed(search: Search) -> tuple[list[Peer], dict[str, str]]:
    """Every engine with every setting worth trying, and why the others are not there."""
    found: list[Peer] = []
    missing: dict[str, str] = {}
    for engine, (peers, why) in {
        "llama-server": (_llama, "no llama-server on PATH; name it with --llama-server or TIDEMILL_BENCH_LLAMA"),
        "vllm": (_vllm, "no interpreter that can import vllm; name one with --python or TIDEMILL_BENCH_PYTHON"),
        "openvino-genai": (_openvino, "no interpreter that can import openvino_genai; name one with --python"),
        "transformers": (
            _transformers,
            "no interpreter with torch and transformers; name one with --python",
        ),
    }.items():
        if engine not in search.only:
            missing[engine] = "not asked for"
        elif own := list(peers(search)):
            found += own
        else:
            missing[engine] = why
    return found, missing


def _llama(search: Search) -> Iterator[Peer]:
    for binary in _llama_servers(search.llama):
        folder = binary.resolve().parent
        build = folder.parent.name if folder.name == "bin" else folder.name
        plain = "--cache-ram 0 --ctx-checkpoints 0"
        for settings in (
            f"-b 2048 -ub 512 {plain}",
            f"-b 2048 -ub 128 {plain}",
            f"-b 256 -ub 128 {plain}",  # less of a prompt between two tokens of the others
            f"-b 128 -ub 128 {plain}",
            "-b 2048 -ub 512",
            f"-b 2048 -ub 512 -fa off {plain}",
        ):
            yield _llama_peer(search, binary, build, settings)


def _llama_peer(search: Search, binary: Path, build: str, settings: str) -> Peer:
    flash = [] if "-fa" in settings else ["-fa", "on"]

    def command(port: int) -> list[str]:
        return [
            str(binary), "-m", search.model, "--host", "127.0.0.1", "--port", str(port),
            "-t", str(search.threads), "-tb", str(search.threads), "-np", str(search.streams),
            "-c", str(search.streams * search.context), *flash, "--no-webui", "--metrics", "--alias", _NAME,
            *settings.split(),
        ]  # fmt: skip

    return Peer(engine="llama-server", settings=f"{build} -np {search.streams} {settings}", command=command)


def _llama_servers(named: Sequence[str]) -> Iterator[Path]:
    places = named or [place for place in os.environ.get("TIDEMILL_BENCH_LLAMA", "").split(":") if place]
    for place in places:
        path = Path(place)
        binary = path / "llama-server" if path.is_dir() else path
        if not binary.is_file() and named:
            raise ConfigError(f"{place}: is no llama-server and no folder with one", param="llama_server")
        if binary.is_file():
            yield binary
    if not places and (known := shutil.which("llama-server")):
        yield Path(known)


def _vllm(search: Search) -> Iterator[Peer]:
    """On the processor; whether it reads the model's format it says itself."""
    if (python := _interpreter(search.pythons, "vllm")) is None:
        return
    for tokens in (2048, 512):
        own = ["--max-num-batched-tokens", str(tokens)]

        def command(port: int, own: Sequence[str] = own) -> list[str]:
            return [
                python, "-m", "vllm.entrypoints.openai.api_server", "--model", search.model, "--host", "127.0.0.1",
                "--port", str(port), "--served-model-name", _NAME, "--max-num-seqs", str(search.streams),
                "--max-model-len", str(search.context), *own,
            ]  # fmt: skip

        threads = {"VLLM_CPU_OMP_THREADS_BIND": f"0-{search.threads - 1}", "VLLM_CPU_KVCACHE_SPACE": "2"}
        yield Peer(engine="vllm", settings=" ".join(own), command=command, environment=threads)


def _openvino(search: Search) -> Iterator[Peer]:
    if (python := _interpreter(search.pythons, "openvino_genai")) is not None:
        for tokens in (2048, 256):
            yield _driven(search, "openvino-genai", python, "serve_openvino.py", f"--batched-tokens {tokens}")


def _transformers(search: Search) -> Iterator[Peer]:
    if (python := _interpreter(search.pythons, "torch", "transformers")) is not None:
        for kind in ("bfloat16", "float32"):
            yield _driven(search, "transformers", python, "serve_transformers.py", f"--dtype {kind}")


def _driven(search: Search, engine: str, python: str, driver: str, settings: str) -> Peer:
    """An engine without a server for token ids, behind one of ours."""

    def command(port: int) -> list[str]:
        return [
            python, str(_DRIVERS / driver), search.model, "--port", str(port), "--threads", str(search.threads),
            "--streams", str(search.streams), *settings.split(),
        ]  # fmt: skip

    return Peer(engine=engine, settings=settings, command=command)


def _interpreter(named: Sequence[str], *modules: str) -> str | None:
    """The first interpreter that has these modules."""
    given = named or [one for one in os.environ.get("TIDEMILL_BENCH_PYTHON", "").split(":") if one] or [sys.executable]
    code = "import importlib.util, sys; sys.exit(not all(importlib.util.find_spec(name) for name in sys.argv[1:]))"
    for python in given:
        try:
            done = subprocess.run([python, "-c", code, *modules], capture_output=True, check=False, timeout=60)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0:
            return python
    return None

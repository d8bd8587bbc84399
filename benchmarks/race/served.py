"""Rows of the server: callers in a closed loop, ours beside llama-server and OpenVINO GenAI's continuous batching."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.race.figures import race_row
from benchmarks.race.llama_tools import ENGINE, build_name, llama_folders
from benchmarks.race.load import Load, question, run
from benchmarks.race.peers import DRIVERS, converted, interpreter
from benchmarks.race.rows import Served, Wanted
from benchmarks.race.side import Ask, Contender, Figures, Side, SideFailed, Worker
from benchmarks.race.turns import Stable, alternate
from tidemill.bench.figures.percentiles import nearest_rank

__all__ = ["measure_served"]

_READY_LIMIT = 300.0
_TURN_LIMIT = 180.0


class Server:
    """An HTTP server as a side: a turn is a load on it."""

    def __init__(
        self, command: Sequence[str], port: int, ready: str, *, environment: Mapping[str, str] | None = None
    ) -> None:
        """Start it; it is ready when a GET of the path ``ready`` gives 200. Raises SideFailed."""
        self._port = port
        self._words = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the server)
        self._process = subprocess.Popen(
            command, stdout=self._words, stderr=self._words, env={**os.environ, **(environment or {})}
        )
        end = time.monotonic() + _READY_LIMIT
        while not _answers(f"http://127.0.0.1:{port}{ready}"):
            if self._process.poll() is not None or time.monotonic() > end:
                reason = self._last_words()
                self.close()
                raise SideFailed(f"the server did not get ready: {reason}")
            time.sleep(0.1)

    def turn(self, ask: Ask) -> Figures:
        load = load_of(ask, f"http://127.0.0.1:{self._port}/v1")
        try:
            asyncio.run(asyncio.wait_for(run(load), _TURN_LIMIT))
        except TimeoutError:
            raise SideFailed(f"took more than {_TURN_LIMIT:.0f} s") from None
        failed = [answer.error for answer in load.answers if answer.error]
        if failed:
            raise SideFailed(f"{len(failed)} of {load.requests} requests failed: {failed[0]}")
        first = [answer.first - answer.began for answer in load.answers if answer.first is not None]
        return figures_of(sum(answer.output_tokens for answer in load.answers), load.seconds, first)

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._words.close()

    def _last_words(self) -> str:
        self._words.seek(0)
        return (self._words.read().strip().splitlines() or ["no output"])[-1][:200]


class InProcess:
    """A driver that runs the closed loop itself, without HTTP."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def turn(self, ask: Ask) -> Figures:
        load = load_of(ask, "")
        prompts = [question(load, number)[1]["prompt"] for number in range(load.requests)]
        done = self._worker.turn(
            {"do": "serve", "prompts": prompts, "clients": load.concurrency, "max_tokens": load.max_tokens}
        )
        return figures_of(done["tokens"], done["seconds"], done["first"])

    def close(self) -> None:
        self._worker.close()


def load_of(ask: Ask, url: str) -> Load:
    """The load of a turn. Prompts are others in each turn, so that one that shares a beginning has to be computed in
    it. A trial (turn -1) has one request per client."""
    return Load(
        url=url,
        model="bench",
        requests=ask["clients"] if ask["turn"] < 0 else ask["requests"],
        concurrency=ask["clients"],
        max_tokens=ask["max_tokens"],
        prompt_tokens=ask["prompt_tokens"],
        shared_tokens=ask["shared_tokens"],
        first_number=(ask["turn"] + 1) * ask["requests"],
    )


def figures_of(tokens: int, seconds: float, first: Sequence[float]) -> Figures:
    """Output tokens per second, and TTFT in ms."""
    ordered = sorted(first)
    p50, p99 = (nearest_rank(ordered, percent) if ordered else None for percent in (50, 99))
    return {
        "rate": tokens / seconds,
        "ttft_p50": None if p50 is None else 1e3 * p50,
        "ttft_p99": None if p99 is None else 1e3 * p99,
    }


def measure_served(
    model: str,
    path: Path,
    served: Served,
    *,
    threads: int,
    turns: int,
    peers: bool,
    quick: bool,
    earlier: Sequence[Figures] = (),
) -> list[dict[str, Any]]:
    """The three rows of one load: output, and TTFT at the median and for the slowest of a hundred. ``earlier``: rows
    that were measured before, which say what build of llama.cpp is the fastest."""
    ask = {
        "clients": served.clients,
        "requests": served.clients if quick else served.requests,
        "prompt_tokens": served.prompt_tokens,
        "shared_tokens": served.shared_tokens,
        "max_tokens": served.max_tokens,
    }
    stable = Stable()
    try:
        rivals = tuple(_contenders(path, served, threads, earlier)) if peers else ()
        race = alternate(ask, lambda: _ours(path), rivals, stable=stable, turns=turns, always=ENGINE)
    finally:
        stable.close()
    return [
        race_row(f"{served.title}, {title} {model}", race, Wanted(), unit=unit, figure=figure, lower=figure != "rate")
        for figure, title, unit in (
            ("rate", "output", "tok/s"),
            ("ttft_p50", "TTFT p50", "ms"),
            ("ttft_p99", "TTFT p99", "ms"),
        )
    ]


def _ours(path: Path) -> Side:
    port = _free_port()
    command = [sys.executable, "-m", "tidemill.cli", "serve", str(path), "--port", str(port), "--name", "bench"]
    return Server(command, port, "/ready")


def _contenders(path: Path, served: Served, threads: int, earlier: Sequence[Figures]) -> Iterator[Contender]:
    for folder in fastest_builds(tuple(llama_folders()), earlier):
        if (folder / "llama-server").exists():
            for settings in _llama_settings(served):
                yield Contender(
                    engine=ENGINE, settings=f"{build_name(folder)} {settings}",
                    start=_llama_server(folder, path, served, threads, settings),
                )  # fmt: skip
    if python := interpreter("openvino_genai"):
        command = [python, str(DRIVERS / "drive_openvino.py"), str(path), str(threads)]
        yield Contender(engine="openvino-genai", settings="in process", start=lambda: InProcess(Worker(command)))
    if vllm := interpreter("vllm"):
        for kind in ("bfloat16", "float32"):
            yield Contender(engine="vllm", settings=kind, start=_vllm(vllm, path, served, threads, kind))


def _vllm(python: str, model: Path, served: Served, threads: int, kind: str) -> Callable[[], Side]:
    """On the processor, compiled, with its prefix cache; it reads a checkpoint beside the GGUF file."""

    def start() -> Side:
        folder = converted(model, "hf")
        port, longest = _free_port(), served.prompt_tokens + served.max_tokens + 64
        command = [
            python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--dtype", kind,
            "--host", "127.0.0.1", "--port", str(port), "--served-model-name", "bench", "--disable-log-stats",
            "--max-num-seqs", str(served.clients), "--max-model-len", str(longest),
        ]  # fmt: skip
        own = {"VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}", "VLLM_CPU_KVCACHE_SPACE": "2", "HF_HUB_OFFLINE": "1"}
        return Server(command, port, "/health", environment=own)

    return start


def fastest_builds(folders: Sequence[Path], earlier: Sequence[Figures]) -> Sequence[Path]:
    """The builds that were the fastest of all in a row of sixteen streams; all builds if there was none."""
    settings = [
        row["peers"]["llama.cpp"]["settings"].split()[0]
        for row in earlier
        if row["work"].startswith("decode 16 ") and "llama.cpp" in row.get("peers", {})
    ]
    return [folder for folder in folders if build_name(folder) in settings] or folders


def _llama_settings(served: Served) -> Iterator[str]:
    """Beside flash attention and a slot per client. Slots keep the beginnings of prompts; copies of idle slots and of
    states within prompts made it slower in trials, and so did one KV buffer for all slots (``--kv-unified``)."""
    plain = "--cache-ram 0 --ctx-checkpoints 0"
    yield f"-b 2048 -ub 512 {plain}"
    yield f"-b 2048 -ub 128 {plain}"
    if served.shared_tokens:
        yield f"-b 2048 -ub 512 --cache-reuse 64 {plain}"


def _llama_server(folder: Path, path: Path, served: Served, threads: int, settings: str) -> Callable[[], Side]:
    def start() -> Side:
        port = _free_port()
        context = served.clients * (served.prompt_tokens + served.max_tokens + 64)
        command = [
            folder / "llama-server", "-m", path, "--port", port, "-t", threads, "-tb", threads, "-np", served.clients,
            "-c", context, "-fa", "on", "--no-webui", "--alias", "bench", *settings.split(),
        ]  # fmt: skip
        return Server([*map(str, command)], port, "/health")

    return start


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False

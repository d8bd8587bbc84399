"""Other engines on the same weights, each through its own tools: tokens per second of a prompt or of decoding streams.

Found by environment variables, else on PATH or by import:

    TIDEMILL_BENCH_LLAMA    folders with llama-bench and llama-batched-bench, separated by ":"; one per build
    TIDEMILL_BENCH_PYTHON   an interpreter that can import openvino_genai
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Candidate", "Shape", "find_candidates"]

_LIMIT = 300.0
_DECODED = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Work that engines have in common: one prompt of ``tokens`` (context 0), or streams that decode at a context."""

    streams: int
    context: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One engine with one set of settings."""

    name: str
    run: Callable[[Path, Shape], float | None]
    """Tokens per second; None where it cannot do this work on this file."""
    prompts_only: bool = False
    """Its setting changes nothing but the reading of prompts."""

    def suits(self, shape: Shape) -> bool:
        """Whether this setting is worth trying here."""
        return not self.prompts_only or shape.context == 0


def find_candidates(threads: int) -> list[Candidate]:
    """Every engine that is installed, with every setting worth trying."""
    found = []
    for folder in _llama_folders():
        for flash in ("on", "off"):
            for ubatch in (512, 128):
                name = f"llama.cpp {folder.parent.name or folder} fa={flash} ub={ubatch}"
                found.append(
                    Candidate(name=name, run=_llama(folder, threads, flash, ubatch), prompts_only=ubatch != 512)
                )
    python = os.environ.get("TIDEMILL_BENCH_PYTHON", sys.executable)
    if _imports(python, "openvino_genai"):
        found.append(Candidate(name="openvino-genai", run=_openvino(python, threads)))
    return found


def _llama_folders() -> Iterator[Path]:
    if asked := os.environ.get("TIDEMILL_BENCH_LLAMA"):
        yield from (Path(folder) for folder in asked.split(":"))
    elif here := shutil.which("llama-bench"):
        yield Path(here).parent


def _llama(folder: Path, threads: int, flash: str, ubatch: int) -> Callable[[Path, Shape], float | None]:
    def run(model: Path, shape: Shape) -> float | None:
        common = ["-m", str(model), "-t", str(threads), "-ub", str(ubatch), "-fa", "1" if flash == "on" else "0"]
        if shape.streams == 1:
            work = ["-p", str(shape.tokens), "-n", "0"] if shape.context == 0 else ["-p", "0", "-n", str(_DECODED)]
            depth = ["-d", str(shape.context)] if shape.context else []
            out = _output([str(folder / "llama-bench"), *common, *work, *depth, "-r", "1", "-o", "json"])
            return None if out is None else float(json.loads(out)[0]["avg_ts"])
        common[-1] = flash
        context = shape.streams * (shape.context + _DECODED)
        work = ["-c", str(context), "-npp", str(shape.context), "-ntg", str(_DECODED), "-npl", str(shape.streams)]
        out = _output([str(folder / "llama-batched-bench"), *common, *work, "--output-format", "jsonl"])
        lines = [] if out is None else [line for line in out.splitlines() if line.startswith("{")]
        return float(json.loads(lines[-1])["speed_tg"]) if lines else None

    return run


_OPENVINO = """
import json, sys, time
import numpy as np, openvino as ov, openvino_genai as ov_genai
model, tokens, context, streams, threads, decoded = sys.argv[1], *map(int, sys.argv[2:])
pipe = ov_genai.LLMPipeline(model, "CPU", INFERENCE_NUM_THREADS=threads)
length = context or tokens
def once(new, start):  # a prompt of its own each time: it keeps those it has seen
    config = ov_genai.GenerationConfig(max_new_tokens=new, ignore_eos=True, do_sample=False)
    prompt = ov.Tensor(np.array([[(start + i * i * 7 + i) % 30000 for i in range(length)]], np.int64))
    begin = time.perf_counter()
    pipe.generate(prompt, config)
    return time.perf_counter() - begin
once(1, 1)
first = once(1, 2)
print(json.dumps(length / first if context == 0 else decoded / (once(decoded + 1, 3) - first)))
"""


def _openvino(python: str, threads: int) -> Callable[[Path, Shape], float | None]:
    def run(model: Path, shape: Shape) -> float | None:
        if shape.streams != 1:
            return None
        sizes = [shape.tokens, shape.context, shape.streams, threads, _DECODED]
        out = _output([python, "-c", _OPENVINO, str(model), *map(str, sizes)])
        return None if out is None else float(out.splitlines()[-1])

    return run


def _imports(python: str, module: str) -> bool:
    return subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False).returncode == 0


def _output(command: list[str]) -> str | None:
    """What a command prints; None, with a word on standard error, where it fails or takes too long."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LIMIT)
    except subprocess.TimeoutExpired:
        print(f"{command[0]} took more than {_LIMIT:.0f} s", file=sys.stderr)
        return None
    if done.returncode != 0 or not done.stdout.strip():
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        print(f"{' '.join(command[:3])}: exit code {done.returncode}: {last[:200]}", file=sys.stderr)
        return None
    return done.stdout

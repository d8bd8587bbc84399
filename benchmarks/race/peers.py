"""Other engines on the same weights.

Found by environment variables, else on PATH or by import:

    TIDEMILL_BENCH_LLAMA    folders with llama-bench, llama-batched-bench and llama-server, one per build
    TIDEMILL_BENCH_PYTHON   interpreters that can import openvino_genai, ctranslate2 or vllm

Several are separated by ":".

CTranslate2 and vLLM read folders beside the model: FOLDER/smollm2-ctranslate2 and FOLDER/smollm2-hf (safetensors) for
FOLDER/smollm2-q4_0.gguf.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from benchmarks.race.llama_tools import llama_contenders
from benchmarks.race.side import Contender, Figures, Side, SideFailed, Worker

__all__ = ["DRIVERS", "contenders", "converted", "interpreter"]

DRIVERS = Path(__file__).parent / "drivers"


def contenders(model: Path, threads: int, *, prompts: bool, swept: Sequence[Figures]) -> Iterator[Contender]:
    """Every engine that is installed, with every setting worth trying. ``prompts``: for reading prompts."""
    yield from llama_contenders(model, threads, prompts=prompts, swept=swept)
    if python := interpreter("openvino_genai"):
        yield Contender(
            engine="openvino-genai",
            settings="",
            start=lambda: Worker([python, str(DRIVERS / "drive_openvino.py"), str(model), str(threads)]),
        )
    if python2 := interpreter("ctranslate2"):
        yield Contender(engine="ctranslate2", settings="int8", start=lambda: _ctranslate2(python2, model, threads))


def _ctranslate2(python: str, model: Path, threads: int) -> Side:
    return Worker([python, str(DRIVERS / "drive_ctranslate2.py"), str(converted(model, "ctranslate2")), str(threads)])


def converted(model: Path, form: str) -> Path:
    """The folder beside a GGUF file with the same model in another form. Raises SideFailed where there is none."""
    folder = model.with_name(re.sub(r"-(q\d.*|f16|f32|bf16)$", "", model.stem) + f"-{form}")
    if not folder.is_dir():
        raise SideFailed(f"it reads no GGUF files, and there is no {folder.name} beside {model.name}")
    return folder


@cache
def interpreter(module: str) -> str | None:
    """The first interpreter that has this module."""
    for python in os.environ.get("TIDEMILL_BENCH_PYTHON", sys.executable).split(":"):
        if subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False).returncode == 0:
            return python
    return None

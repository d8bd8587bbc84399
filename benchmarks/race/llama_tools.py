"""llama.cpp through its own tools, a process per turn: llama-bench, and llama-batched-bench for several streams."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.race.side import Ask, Contender, Figures, output_of

__all__ = ["ENGINE", "LlamaSettings", "LlamaTools", "build_name", "llama_contenders", "llama_folders", "sweep"]

ENGINE = "llama.cpp"
_LARGE = 5 * 10**8
"""Bytes of a file from which on a prompt is not read twice, once for practice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaSettings:
    """A build and its options."""

    folder: Path
    flash: bool = True
    batch: int = 2048
    ubatch: int = 512
    threads: int

    @property
    def name(self) -> str:
        """As rows show it."""
        flash = "on" if self.flash else "off"
        return f"{build_name(self.folder)} fa={flash} b={self.batch} ub={self.ubatch} t={self.threads}"


def build_name(folder: Path) -> str:
    """What rows call a build: the folder it is in."""
    return folder.parent.name if folder.name == "bin" else folder.name


class LlamaTools:
    """A side: the model is loaded anew in each turn, and the time of that is not counted."""

    def __init__(self, model: Path, settings: LlamaSettings) -> None:
        self._model = model
        self._settings = settings
        self._rates: dict[tuple[int, int], float] = {}

    def turn(self, ask: Ask) -> Figures:
        streams, context = ask["streams"], ask["context"]
        if context == 0:
            rate = self._prompt(ask["tokens"], ask["seconds"])
        else:
            known = self._rates.get((streams, context), 32.0)
            tokens = max(8, min(64, int(known / streams * ask["seconds"])))
            rate = self._one(context, tokens) if streams == 1 else self._many(streams, context, tokens)
        self._rates[streams, context] = rate
        return {"rate": rate}

    def close(self) -> None:
        """There is nothing between turns."""

    def _prompt(self, tokens: int, seconds: float) -> float:
        last = self._rates.get((1, 0))
        repeats = 1 if last is None else max(1, int(seconds * last / tokens))
        practice = ["--no-warmup"] if self._model.stat().st_size >= _LARGE else []
        return self._bench(["-p", str(tokens), "-n", "0", "-r", str(repeats), *practice])

    def _one(self, context: int, tokens: int) -> float:
        return self._bench(["-p", "0", "-n", str(tokens), "-d", str(context), "-r", "1"])

    def _bench(self, work: Sequence[str]) -> float:
        s = self._settings
        options = ["-t", str(s.threads), "-b", str(s.batch), "-ub", str(s.ubatch), "-fa", str(int(s.flash))]
        out = output_of([str(s.folder / "llama-bench"), "-m", str(self._model), *options, *work, "-o", "json"])
        return float(json.loads(out)[0]["avg_ts"])

    def _many(self, streams: int, context: int, tokens: int) -> float:
        """One prompt is read and its KV copied for each stream (``-pps`` with a KV buffer per stream): decoding reads
        as much as after so many prompts."""
        s = self._settings
        work = ["-pps", "-npp", str(context), "-ntg", str(tokens), "-npl", str(streams)]
        options = ["-t", str(s.threads), "-b", str(s.batch), "-ub", str(s.ubatch), "-fa", "on" if s.flash else "off"]
        size = ["-c", str(streams * (context + tokens + 64))]
        command = [str(s.folder / "llama-batched-bench"), "-m", str(self._model), *options, *size, *work]
        out = output_of([*command, "--output-format", "jsonl"])
        lines = [line for line in out.splitlines() if line.startswith("{")]
        return float(json.loads(lines[-1])["speed_tg"])


def llama_folders() -> Iterator[Path]:
    """Folders with the tools, one per build: TIDEMILL_BENCH_LLAMA, else where PATH has them."""
    if asked := os.environ.get("TIDEMILL_BENCH_LLAMA"):
        yield from (Path(folder) for folder in asked.split(":"))
    elif here := shutil.which("llama-bench"):
        yield Path(here).parent


def llama_contenders(model: Path, threads: int, *, prompts: bool, swept: Sequence[Figures]) -> Iterator[Contender]:
    """Every build with flash attention on and off, with the batch sizes that a sweep found best for such work."""
    for folder in llama_folders():
        for flash in (True, False):
            plain = LlamaSettings(folder=folder, flash=flash, threads=threads)
            settings = _best_batch(plain, swept) if prompts else plain
            yield Contender(
                engine=ENGINE, settings=settings.name, start=lambda settings=settings: LlamaTools(model, settings)
            )


def _best_batch(settings: LlamaSettings, swept: Sequence[Figures]) -> LlamaSettings:
    own = [one for one in swept if one["folder"] == str(settings.folder) and one["flash"] == settings.flash]
    best = max((one for one in own if one["work"] == "prefill"), key=lambda one: one["rate"], default=None)
    return settings if best is None else replace(settings, batch=best["batch"], ubatch=best["ubatch"])


def sweep(model: Path, threads: int) -> Iterator[Figures]:
    """Prompts of 512 tokens at each micro-batch, batch and number of threads, and decoding at 256 tokens: a figure for
    each build and setting. Q4_0 files are repacked by llama.cpp as it loads them, unless it was built without that."""
    for folder in llama_folders():
        for flash in (True, False):
            plain = LlamaSettings(folder=folder, flash=flash, threads=threads)
            tried = [replace(plain, ubatch=ubatch) for ubatch in (512, 256, 128)]
            tried += [replace(plain, batch=512)]
            if threads > 1:
                tried += [replace(plain, threads=threads // 2)]
            for settings in tried:
                yield _swept(model, settings, "prefill", {"streams": 1, "context": 0, "tokens": 512})
            yield _swept(model, plain, "decode", {"streams": 1, "context": 256, "tokens": 1})


def _swept(model: Path, settings: LlamaSettings, work: str, shape: Ask) -> Figures:
    rate = LlamaTools(model, settings).turn({**shape, "seconds": 0.5})["rate"]
    return {
        "work": work, "settings": settings.name, "folder": str(settings.folder), "flash": settings.flash,
        "batch": settings.batch, "ubatch": settings.ubatch, "threads": settings.threads, "rate": rate,
    }  # fmt: skip

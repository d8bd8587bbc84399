"""Traces made by rules that are plain here and unknown to the models: what a fit has to find again."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from tidemill.bench.traces.row import Segment, TraceRow
from tidemill.bench.traces.trace import Trace


def trace_of(rows: Iterable[TraceRow]) -> Trace:
    return Trace(rows=tuple(sorted(rows, key=lambda row: row.at)), name="made", format="tidemill")


def requests(times: npt.ArrayLike, *, seed: int = 0) -> Trace:
    """Log-normal lengths that go together, at these times."""
    numbers = np.random.default_rng(seed)
    listed = np.sort(np.asarray(times))
    normal = numbers.standard_normal((2, len(listed)))
    prompts = np.exp(6 + normal[0]).astype(int) + 1
    outputs = np.exp(4 + 0.7 * normal[0] + 0.5 * normal[1]).astype(int) + 1
    return trace_of(
        TraceRow(at=float(at), prompt_tokens=int(prompt), output_tokens=int(output))
        for at, prompt, output in zip(listed, prompts, outputs, strict=True)
    )


def poisson(rate: float, count: int, *, seed: int = 0) -> npt.NDArray[np.float64]:
    return np.asarray(np.cumsum(np.random.default_rng(seed).exponential(1 / rate, count)))


def tides(seconds: int, *, seed: int = 0) -> npt.NDArray[np.float64]:
    """Poisson arrivals whose rate swings between 1 and 9 a second every 100 s."""
    numbers = np.random.default_rng(seed)
    counts = numbers.poisson(5 + 4 * np.sin(2 * np.pi * np.arange(seconds) / 100))
    return np.asarray(np.sort(np.repeat(np.arange(seconds), counts) + numbers.random(counts.sum())))


def bursts(number: int, *, seed: int = 0) -> npt.NDArray[np.float64]:
    """Bursts of 50 to 100 requests, each within ten seconds, with silence of one to three minutes between."""
    numbers = np.random.default_rng(seed)
    starts = np.cumsum(numbers.uniform(60, 180, number))
    return np.sort(np.concatenate([start + 10 * numbers.random(numbers.integers(50, 100)) for start in starts]))


def returns(count: int, *, seed: int = 0) -> Trace:
    """Prompts of ten blocks with nothing in common; from the first third on, half of the requests repeat the one that
    came a third of the trace before and add a block."""
    rows: list[TraceRow] = []
    numbers = np.random.default_rng(seed)
    for number, at in enumerate(poisson(2.0, count, seed=seed)):
        prefix = [Segment(f"{number}.{place}", 64) for place in range(10)]
        if number >= count // 3 and numbers.random() < 0.5:
            prefix = [*rows[number - count // 3].prefix, Segment(f"{number}", 64)]
        tokens = sum(piece.tokens for piece in prefix)
        rows.append(TraceRow(at=float(at), prompt_tokens=tokens, output_tokens=10, prefix=tuple(prefix)))
    return trace_of(rows)


def talks(count: int, *, seed: int = 0) -> Trace:
    """Conversations with one of two system prompts (the second goes on from the first), geometric turns and pauses."""
    numbers = np.random.default_rng(seed)
    rows = []
    for number, start in enumerate(poisson(0.5, count, seed=seed)):
        at, prefix = float(start), [Segment("system", 200)]
        if numbers.random() < 0.25:
            prefix.append(Segment("tools", 300))
        think = None
        for turn in range(int(numbers.geometric(0.4))):
            question, answer = int(numbers.integers(20, 200)), int(numbers.integers(10, 300))
            prefix.append(Segment(f"{number}q{turn}", question))
            rows.append(
                TraceRow(
                    at=at,
                    prompt_tokens=sum(piece.tokens for piece in prefix),
                    output_tokens=answer,
                    prefix=tuple(prefix),
                    session=str(number),
                    turn=turn,
                    think=think,
                    tenant="gold" if number % 4 == 0 else "iron",
                    priority=int(number % 4 == 0),
                )
            )
            prefix.append(Segment(f"{number}a{turn}", answer))
            think = float(numbers.exponential(10))
            at += answer / 50 + think
    return trace_of(rows)


def blocks(count: int, *, seed: int = 0) -> Trace:
    """Prompts in blocks of 64, all with the same first two; two in five go on from one of the last twenty."""
    numbers = np.random.default_rng(seed)
    rows: list[TraceRow] = []
    for number, at in enumerate(poisson(2.0, count, seed=seed)):
        if rows and numbers.random() < 0.4:
            prefix = list(rows[-int(numbers.integers(1, min(20, len(rows)) + 1))].prefix)
        else:
            prefix = [Segment("x", 64), Segment("y", 64)]
        prefix += [Segment(f"{number}.{place}", 64) for place in range(int(numbers.integers(1, 12)))]
        prompt = 64 * len(prefix) + int(numbers.integers(0, 64))
        if prompt > 4000:
            prefix, prompt = prefix[:3], 200
        rows.append(
            TraceRow(
                at=float(at), prompt_tokens=prompt, output_tokens=int(numbers.integers(1, 300)), prefix=tuple(prefix)
            )
        )
    return trace_of(rows)

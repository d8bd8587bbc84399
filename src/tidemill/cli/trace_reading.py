"""Options with which every command that reads a trace says how to read it and which part of it counts."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, Literal

import typer

from tidemill.bench.traces.options import Encode
from tidemill.bench.traces.trace import Trace

__all__ = ["TraceReader", "with_reading"]

TraceReader = Callable[[str], Trace]
"""Reads the file named, as the options say."""


def with_reading(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of ``_read`` in place of its parameter ``read``."""
    signature = inspect.signature(command, eval_str=True)
    own = [item for item in signature.parameters.values() if item.name != "read"]
    made = [item for item in inspect.signature(_read, eval_str=True).parameters.values() if item.name != "path"]

    @functools.wraps(command)
    def run(**values: Any) -> None:
        options = {item.name: values.pop(item.name) for item in made}
        command(read=functools.partial(_read, **options), **values)

    run.__signature__ = signature.replace(parameters=[*own, *made])  # type: ignore[attr-defined]
    run.__annotations__ = {}
    return run


def _read(
    path: str,
    *,
    read_as: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="NAME",
            help="Format of the file: tidemill, mooncake, burstgpt, azure, splitwise, vidur, conversations, "
            "vllm-prompts or vllm-results; auto tells it by header or first record.",
        ),
    ] = "auto",
    start: Annotated[
        float, typer.Option("--start", metavar="SECONDS", min=0.0, help="Leave out what came before.")
    ] = 0.0,
    duration: Annotated[
        float | None, typer.Option("--duration", metavar="SECONDS", min=0.0, help="Keep so much of the trace.")
    ] = None,
    skip: Annotated[int, typer.Option("--skip", metavar="N", min=0, help="Leave out the first N requests.")] = 0,
    count: Annotated[int | None, typer.Option("--count", metavar="N", min=1, help="Keep at most N requests.")] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Keep the requests of one tenant.")] = None,
    thin: Annotated[
        float, typer.Option("--thin", metavar="SHARE", help="Keep a random share of the sessions, each whole.")
    ] = 1.0,
    thin_seed: Annotated[int, typer.Option("--thin-seed", metavar="N", min=0, help="Seed of that choice.")] = 0,
    speed: Annotated[
        float, typer.Option("--speed", metavar="X", help="Replay X times as fast; pauses between turns shrink too.")
    ] = 1.0,
    rate: Annotated[
        float | None,
        typer.Option("--rate", metavar="X", help="Replay at the pace that gives X requests per second on average."),
    ] = None,
    empty: Annotated[
        Literal["drop", "keep"],
        typer.Option(
            "--empty",
            metavar="drop|keep",
            help="Requests without output tokens, which failed: left out and counted, or kept and asking for one.",
        ),
    ] = "drop",
    hash_block: Annotated[
        int, typer.Option("--hash-block", metavar="N", min=1, help="mooncake: tokens that one of hash_ids stands for.")
    ] = 512,
    time_unit: Annotated[
        Literal["ms", "s"],
        typer.Option("--time-unit", metavar="ms|s", help="mooncake: unit of the timestamps."),
    ] = "ms",
    tokenizer: Annotated[
        str | None,
        typer.Option(
            "--tokenizer",
            metavar="MODEL",
            help="conversations, vllm-prompts: count tokens as this model does, instead of estimating them.",
        ),
    ] = None,
    output_tokens: Annotated[
        int | None,
        typer.Option("--output-tokens", metavar="N", min=1, help="vllm-prompts: answer's length where none is given."),
    ] = None,
) -> Trace:
    """Read a trace, then cut it: window, tenant, share, count, pace, in this order."""
    from tidemill.bench.traces import cut
    from tidemill.bench.traces.formats import load_trace
    from tidemill.bench.traces.options import ReadOptions
    from tidemill.core.errors import SetupError

    encode = _encoder(tokenizer) if tokenizer else None
    options = ReadOptions(
        empty=empty,
        hash_block=hash_block,
        ticks_per_second=1000 if time_unit == "ms" else 1,
        encode=encode,
        output_tokens=output_tokens,
    )
    trace = cut.sliced(load_trace(path, read_as=read_as, options=options), start=start, duration=duration)
    if tenant is not None:
        trace = cut.of_tenant(trace, tenant)
    if thin != 1.0:
        trace = cut.thinned(trace, thin, seed=thin_seed)
    if skip or count is not None:
        trace = cut.sliced(trace, skip=skip, count=count)
    if speed != 1.0:
        trace = cut.scaled(trace, speed)
    if rate is not None:
        trace = cut.to_rate(trace, rate)
    if not trace.rows:
        raise SetupError(f"{path}: no request is in the part asked for; widen --start, --duration, --skip or --thin")
    return trace


def _encoder(model: str) -> Encode:
    from tidemill.models.loading import load_text_source
    from tidemill.text.tokenizer import build_tokenizer

    built = build_tokenizer(load_text_source(model))
    return lambda text: built.encode(text, add_bos=False)

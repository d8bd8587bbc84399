"""``tidemill bench run``: a load on a server, or on an engine in this command, and what came back."""

from __future__ import annotations

import asyncio
import dataclasses
import json as jsonlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from tidemill.bench.load.options import LoadOptions, ServerOptions
from tidemill.bench.load.prompt_options import PromptOptions
from tidemill.cli.default import DEFAULT_MODEL, ModelArgument, explained
from tidemill.cli.models_file import ModelsFileOption, named
from tidemill.cli.options import DebugOption, JsonOption, with_settings
from tidemill.core.config import EngineConfig, ExecutorConfig, ModelConfig, SchedulerConfig
from tidemill.core.errors import ConfigError
from tidemill.core.settings import engine_config, settings_of

__all__ = ["EXAMPLES", "run"]

EXAMPLES = """Examples:

\b
tidemill bench run model.gguf --rate 2 --duration 60 --slo "ttft:p99<2s; itl:p95<150ms"
tidemill bench run --url http://127.0.0.1:8000/v1 --concurrency 16 --requests 200
tidemill bench run --url http://host:8000/v1 --endpoint chat --tokenizer model.gguf --rate 1..20 --duration 120
tidemill bench run --url http://host:8000/v1 --trace trace.jsonl --time-scale 0.5 --out results/a
tidemill bench run --url http://host:8000/v1 --rate 4 --duration 60 --tenants gold=3,key=K1 --tenants tin=1,key=K2
tidemill bench run model.gguf --rate 1 --requests 40 --turns 4 --think 5 --shared-tokens 64
"""

_T = TypeVar("_T")
_ENGINE = (ModelConfig, SchedulerConfig, ExecutorConfig, EngineConfig)


@with_settings(LoadOptions, ServerOptions, PromptOptions, *_ENGINE)
def run(
    model: ModelArgument = DEFAULT_MODEL,
    *,
    served: Annotated[
        str | None,
        typer.Option("--model", metavar="NAME", help="The model's name at the URL. [default: the first it lists]"),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE", help="Replay this trace, in any format that tidemill trace reads."),
    ] = None,
    slo: Annotated[
        str | None,
        typer.Option(
            "--slo",
            metavar="EXPRESSION",
            help="Objectives, as 'ttft:p99<2s; itl:p95<150ms; e2e:mean<10s'. Of ttft, itl, gap, tpot, e2e, queue: "
            "mean, min, max, median, pNN; in us, ms, s, min.",
        ),
    ] = None,
    price_per_hour: Annotated[float, typer.Option("--price-per-hour", help="Of the machine, in any currency.")] = 0.0,
    watts: Annotated[
        float, typer.Option("--watts", help="Power of the machine, where it cannot tell its energy.")
    ] = 0.0,
    price_per_kwh: Annotated[float, typer.Option("--price-per-kwh", help="Of energy, in the same currency.")] = 0.0,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FOLDER", help="Write requests.jsonl (raw times) and run.json there."),
    ] = None,
    models_file: ModelsFileOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 (read by main)
    **settings: Any,
) -> None:
    """Put a load on an OpenAI-compatible server (--url), or on MODEL in this command, and print how it answered.

    Latencies of an open loop (--rate, --trace) count from when a request was due. Failures are in no latency and miss
    every objective. A run in which this client was the bottleneck is marked, and the exit code is 1, as it is if a
    request failed. The last line is one JSON object with all figures.
    """
    from tidemill.bench.figures.cost import PriceModel
    from tidemill.bench.figures.slo import parse_slo
    from tidemill.bench.job import Job
    from tidemill.bench.measurement import conditions
    from tidemill.bench.results import write_run
    from tidemill.bench.run_tables import run_lines
    from tidemill.bench.traces.formats import load_trace

    server = _of(ServerOptions, settings)
    job = Job(
        load=_of(LoadOptions, settings),
        prompts=_of(PromptOptions, settings),
        rows=None if trace is None else load_trace(trace).rows,
        slo=parse_slo(slo) if slo else None,
        price=PriceModel(per_hour=price_per_hour, watts=watts, per_kwh=price_per_kwh),
        progress=not json,
    )
    engine = {name: value for name, value in settings.items() if name in settings_of(*_ENGINE)}
    if server.url is None:
        _refuse_of_servers(server, served)
        model, engine = named(model, engine, models_file)
        with explained(model):
            done = asyncio.run(job.in_process(engine_config(model, engine)))
    else:
        _refuse_of_engines(engine, model)
        done = asyncio.run(job.at_server(_with_key(server), served))
    values = done.values
    if out is not None:
        asked = {**job.asked(), "url": server.url, "trace": None if trace is None else str(trace), "engine": engine}
        write_run(out, done.measurement.run.records, {"conditions": conditions(), **asked, "figures": values})
    if not json:
        print("\n".join([done.target, *run_lines(values)]))
    print(jsonlib.dumps(values))
    if values["requests"]["failed"] or not values["valid"]:
        raise typer.Exit(1)


def _of(owner: type[_T], settings: Mapping[str, Any]) -> _T:
    """Options of a class, made from those settings that are its fields."""
    known = settings_of(owner)
    return owner(**{name: item.checked(settings[name]) for name, item in known.items() if name in settings})


def _with_key(server: ServerOptions) -> ServerOptions:
    """With a key from the environment, if none was typed."""
    key = server.api_key or os.environ.get("TIDEMILL_BENCH_API_KEY") or os.environ.get("OPENAI_API_KEY")
    return dataclasses.replace(server, api_key=key)


def _refuse_of_servers(server: ServerOptions, served: str | None) -> None:
    """Options that mean something for a server alone must not be ignored."""
    for item in dataclasses.fields(server):
        if getattr(server, item.name) != item.default:
            raise ConfigError(f"{item.name} is of a server; name it with --url", param=item.name)
    if served is not None:
        raise ConfigError("--model is a name at a server: give its --url, or MODEL without --model", param="model")


def _refuse_of_engines(engine: Mapping[str, Any], model: str) -> None:
    for name in engine:
        raise ConfigError(f"{name} is a setting of an engine in this command; --url names a server", param=name)
    if model != DEFAULT_MODEL:
        raise ConfigError(f"{model}: with --url, name the server's model with --model", param="model")

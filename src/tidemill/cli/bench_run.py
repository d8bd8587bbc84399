"""``tidemill bench run``: a load on a server, or on an engine in this command, and what came back."""

from __future__ import annotations

import asyncio
import json as jsonlib
from pathlib import Path
from typing import Annotated, Any

import typer

from tidemill.bench.load.options import LoadOptions, ServerOptions
from tidemill.bench.load.prompt_options import PromptOptions
from tidemill.cli.bench_target import ENGINE, BenchTarget, options_of
from tidemill.cli.default import DEFAULT_MODEL, ModelArgument
from tidemill.cli.models_file import ModelsFileOption
from tidemill.cli.options import DebugOption, JsonOption, with_settings

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


@with_settings(LoadOptions, ServerOptions, PromptOptions, *ENGINE)
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
    report: Annotated[
        Path | None,
        typer.Option("--report", metavar="FILE", help="Write a page with figures and pictures: one HTML file."),
    ] = None,
    models_file: ModelsFileOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 (read by main)
    **settings: Any,
) -> None:
    """Put a load on an OpenAI-compatible server (--url), or on MODEL in this command, and print how it answered.

    Latencies of an open loop (--rate, --trace) count from when a request was due. Failures are in no latency and miss
    every objective. A run in which this client was the bottleneck is marked, and the exit code is 1, as it is if a
    request failed. Ctrl-C ends the run, writes what was measured and marks it. The last line is one JSON object with
    all figures.
    """
    from tidemill.bench.figures.cost import PriceModel
    from tidemill.bench.figures.slo import parse_slo
    from tidemill.bench.job import Job
    from tidemill.bench.measurement import conditions
    from tidemill.bench.report.page import report_page, write_page
    from tidemill.bench.report.shown import ShownRun
    from tidemill.bench.results import write_run
    from tidemill.bench.run_tables import run_lines
    from tidemill.bench.traces.formats import load_trace

    target = BenchTarget.of(model, served, settings, models_file)
    job = Job(
        load=options_of(LoadOptions, settings),
        prompts=options_of(PromptOptions, settings),
        rows=None if trace is None else load_trace(trace).rows,
        slo=parse_slo(slo) if slo else None,
        price=PriceModel(per_hour=price_per_hour, watts=watts, per_kwh=price_per_kwh),
        progress=not json,
        keep_interrupted=True,
    )
    done = asyncio.run(target.measured(job))
    values = done.values
    asked = {**job.asked(), **target.described(), "trace": None if trace is None else str(trace)}
    described = {"conditions": conditions(), **asked, "figures": values}
    records, states = done.measurement.run.records, done.measurement.states
    if out is not None:
        write_run(out, records, described, states)
    if report is not None:
        name = out.name if out is not None else done.target
        write_page(report, report_page([ShownRun(name=name, records=records, states=states, run=described)]))
    if not json:
        print("\n".join([done.target, *run_lines(values)]))
    print(jsonlib.dumps(values))
    if values["requests"]["failed"] or not values["valid"]:
        raise typer.Exit(1)

"""``tidemill bench sweep``: the highest rate within objectives."""

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

__all__ = ["EXAMPLES", "sweep"]

EXAMPLES = """Examples:

\b
tidemill bench sweep model.gguf --slo "ttft:p99<2s; itl:p95<150ms" --duration 20
tidemill bench sweep --url http://127.0.0.1:8000/v1 --slo "ttft:p99<2s" --start-rate 4 --requests 60 --plot sweep.svg
tidemill bench sweep --url http://host:8000/v1 --slo "e2e:mean<10s" --trace trace.jsonl --out results/sweep
"""


@with_settings(LoadOptions, ServerOptions, PromptOptions, *ENGINE, without=("rate", "concurrency", "time_scale"))
def sweep(
    model: ModelArgument = DEFAULT_MODEL,
    *,
    slo: Annotated[str, typer.Option("--slo", metavar="EXPRESSION", help="Objectives, as for bench run.")],
    served: Annotated[
        str | None,
        typer.Option("--model", metavar="NAME", help="The model's name at the URL. [default: the first it lists]"),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE", help="Replay this trace, faster and slower."),
    ] = None,
    share: Annotated[
        float, typer.Option("--share", help="Share of requests that must be within the objectives.")
    ] = 0.95,
    start_rate: Annotated[float, typer.Option("--start-rate", help="Requests per second to begin with.")] = 1.0,
    least_rate: Annotated[float, typer.Option("--least-rate", help="Try nothing below.")] = 0.01,
    most_rate: Annotated[float, typer.Option("--most-rate", help="Try nothing above.")] = 10_000.0,
    precision: Annotated[
        float, typer.Option("--precision", help="Done when the lowest rate that fails is so many times the knee.")
    ] = 1.1,
    give_up: Annotated[
        bool,
        typer.Option(
            "--give-up/--no-give-up", help="Hang up once a rate can no more have its share within the objectives."
        ),
    ] = True,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw throughput against latency, as SVG.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="Write sweep.json and sweep.svg there.")
    ] = None,
    models_file: ModelsFileOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 (read by main)
    **settings: Any,
) -> None:
    """Find the highest rate at which enough requests are within objectives: by doubling, then by bisection.

    Each rate is a run of its own (--duration or --requests) with prompts that no cache has seen. The last line is one
    JSON object. The exit code is 1 if no rate will do, or if the client was the bottleneck.
    """
    from tidemill.bench.figures.slo import parse_slo
    from tidemill.bench.hope import GaveUp
    from tidemill.bench.job import Job
    from tidemill.bench.measurement import conditions
    from tidemill.bench.report.page import write_page
    from tidemill.bench.sweep.attempt import Attempt, at_rate, attempt_of, given_up
    from tidemill.bench.sweep.knee import KneeSearch
    from tidemill.bench.sweep.plot import sweep_svg
    from tidemill.bench.sweep.rates import Sweep, sweep_in_turns, sweep_lines, sweep_values
    from tidemill.bench.traces.formats import load_trace
    from tidemill.core.errors import ConfigError

    search = KneeSearch(start=start_rate, least=least_rate, most=most_rate, precision=precision, good=share)
    load = options_of(LoadOptions, settings if trace else {**settings, "rate": str(start_rate)})
    if load.requests is None and load.duration is None:
        raise ConfigError("say how long each rate is tried: --duration or --requests", param="duration")
    target = BenchTarget.of(model, served, settings, models_file)
    job = Job(
        load=load,
        prompts=options_of(PromptOptions, settings),
        rows=None if trace is None else load_trace(trace).rows,
        slo=parse_slo(slo),
        progress=not json,
        needed_share=share if give_up else None,
    )
    name = [""]

    async def attempt(rate: float, number: int) -> Attempt:
        try:
            done = await target.measured(at_rate(job, rate, number))
        except GaveUp as why:
            return given_up(rate, why)
        name[0] = done.target
        return attempt_of(rate, done.values)

    def tell(_place: int, found: Attempt) -> None:
        if not json:
            words = f"under {found.share:.1%}" if found.gave_up else f"{found.share:.1%}"
            typer.echo(f"{found.rate:8.4g} requests/s: {words} within the objectives", err=True)

    searched = Sweep(search=search, attempt=attempt)
    asyncio.run(sweep_in_turns([searched], on_attempt=tell))
    asked = {**job.asked(), **target.described(), "trace": None if trace is None else str(trace)}
    values = {"target": name[0] or target.server.url or target.model, **sweep_values(searched)}
    drawn = sweep_svg({values["target"]: values})
    if out is not None:
        described = {"conditions": conditions(), **asked, "figures": values}
        write_page(out / "sweep.json", jsonlib.dumps(described, indent=2) + "\n")
        write_page(out / "sweep.svg", drawn)
    if plot is not None:
        write_page(plot, drawn)
    if not json:
        print("\n".join([values["target"], *sweep_lines(values)]))
    print(jsonlib.dumps(values))
    if values["highest_rate"] is None or not values["valid"]:
        raise typer.Exit(1)

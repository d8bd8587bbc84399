"""``tidemill bench peers``: other engines that are installed, beside Tidemill."""

from __future__ import annotations

import asyncio
import dataclasses
import json as jsonlib
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemill.bench.load.options import LoadOptions
from tidemill.bench.load.prompt_options import PromptOptions
from tidemill.cli.bench_target import options_of
from tidemill.cli.default import DEFAULT_MODEL, ModelArgument
from tidemill.cli.options import DebugOption, JsonOption, with_settings
from tidemill.core.errors import ConfigError

if TYPE_CHECKING:
    from tidemill.bench.job import Job

__all__ = ["EXAMPLES", "peers"]

EXAMPLES = """Examples:

\b
tidemill bench peers model-q4_0.gguf --out results/peers
tidemill bench peers model-q4_0.gguf --llama-server ~/llama.cpp/build/bin --slo "ttft:p99<2s; itl:p95<150ms"
tidemill bench peers model-q4_0.gguf --only llama-server --concurrency 16 --prompt-tokens 576 --shared-tokens 512
TIDEMILL_BENCH_PYTHON=~/openvino/bin/python tidemill bench peers model-q4_0.gguf --only openvino-genai
"""


@with_settings(LoadOptions, PromptOptions, without=("rate", "time_scale", "concurrency", "requests"))
def peers(
    model: ModelArgument = DEFAULT_MODEL,
    *,
    llama_server: Annotated[
        list[str] | None,
        typer.Option("--llama-server", metavar="PATH", help="llama-server, or a folder with it; repeatable (builds)."),
    ] = None,
    python: Annotated[
        list[str] | None,
        typer.Option("--python", metavar="PATH", help="Interpreter with other engines; repeatable."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="ENGINE", help="llama-server, vllm, openvino-genai, transformers; repeatable."),
    ] = None,
    setting: Annotated[
        str, typer.Option("--setting", metavar="TEXT", help="Try only settings of peers that contain this.")
    ] = "",
    trace: Annotated[
        Path | None, typer.Option("--trace", metavar="FILE", help="Take requests from this trace.")
    ] = None,
    slo: Annotated[
        str | None, typer.Option("--slo", metavar="EXPRESSION", help="Also search the highest rate within objectives.")
    ] = None,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, help="Callers of the closed loop.")] = 8,
    requests: Annotated[int, typer.Option("--requests", min=1, help="Requests of a round, and of a rate.")] = 32,
    trial_requests: Annotated[
        int, typer.Option("--trial-requests", min=1, help="Requests with which each setting is tried.")
    ] = 8,
    rounds: Annotated[int, typer.Option("--rounds", min=0, help="Rounds of the closed loop; 0: rates only.")] = 3,
    slots: Annotated[
        int | None, typer.Option("--slots", min=1, help="Sequences at a time of peers. [default: concurrency]")
    ] = None,
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="Compute threads of each. [default: all processors]")
    ] = None,
    start_rate: Annotated[float, typer.Option("--start-rate", help="Requests per second to begin with.")] = 1.0,
    precision: Annotated[float, typer.Option("--precision", help="How close the search for the rate comes.")] = 1.1,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="Write peers.json, peers.md and peers.html there.")
    ] = None,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 (read by main)
    **settings: Any,
) -> None:
    """Measure other engines beside Tidemill: the same weights, load and machine, in alternation.

    Each engine that is installed is tried with several settings, all of which are recorded; the fastest of each takes
    part. Their servers run on free ports of this machine and end with the command. The last line is one JSON object.
    """
    from tidemill.bench.figures.slo import parse_slo
    from tidemill.bench.job import Job
    from tidemill.bench.measurement import conditions
    from tidemill.bench.peers.contest import Contest
    from tidemill.bench.peers.installed import ENGINES, Search, installed, ourselves
    from tidemill.bench.peers.results_page import contest_html, contest_lines, contest_markdown
    from tidemill.bench.report.page import write_page
    from tidemill.bench.sweep.knee import KneeSearch
    from tidemill.bench.traces.formats import load_trace
    from tidemill.core.machine import read_machine

    load = dataclasses.replace(options_of(LoadOptions, settings), requests=requests)
    prompts = options_of(PromptOptions, settings)
    rows = None if trace is None else load_trace(trace).rows
    objectives = None if slo is None else parse_slo(slo)
    callers = dataclasses.replace(load, concurrency=concurrency)
    closed = Job(load=callers, prompts=prompts, rows=rows, slo=objectives)
    if rounds == 0 and slo is None:
        raise ConfigError("rounds: with 0 there is nothing to measure without --slo", param="rounds")
    rates, search = None, None
    if objectives is not None:
        open_load = dataclasses.replace(load, rate=None if rows else f"{start_rate:g}")
        rates = Job(load=open_load, prompts=prompts, rows=rows, slo=objectives, needed_share=0.95)
        KneeSearch(start=start_rate, precision=precision)  # refuse what cannot be before anything is started

        def search() -> KneeSearch:
            return KneeSearch(start=start_rate, precision=precision)

    where = Search(
        model=model,
        threads=threads or read_machine().cpus,
        streams=slots or concurrency,
        context=_longest(closed),
        llama=llama_server or (),
        pythons=python or (),
        only=only or ENGINES,
    )
    found, missing = installed(where)
    contest = Contest(
        peers=[*ourselves(where), *(peer for peer in found if setting in peer.settings)],
        closed=closed,
        rates=rates,
        search=search,
        rounds=rounds,
        trial_requests=trial_requests,
        tell=lambda line: None if json else typer.echo(line, err=True),
    )
    measured = asyncio.run(_until_told(contest.run()))
    asked = {**closed.asked(), "slo": slo, "model": Path(model).name, "trace": None if trace is None else trace.name}
    values = {"conditions": {**conditions(), "threads": where.threads}, **asked, "missing": missing, **measured}
    if out is not None:
        write_page(out / "peers.json", jsonlib.dumps(values, indent=2) + "\n")
        write_page(out / "peers.md", contest_markdown(values))
        write_page(out / "peers.html", contest_html(values))
    if not json:
        print("\n".join(contest_lines(values)))
    print(jsonlib.dumps(values))


async def _until_told(work: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    """Do it; SIGTERM ends it as Ctrl-C does, so that no server is left over."""
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _longest(job: Job) -> int:
    """Tokens of the longest sequence of a load, and some to spare."""
    from tidemill.bench.load.plan import parse_lengths

    if job.rows is not None:
        chosen = job.rows[: job.load.requests]
        return max(row.prompt_tokens + row.output_tokens for row in chosen) + 64
    prompt = parse_lengths(job.load.prompt_tokens, "prompt_tokens").high
    output = parse_lengths(job.load.output_tokens, "output_tokens").high
    return (prompt + output) * job.load.turns + 64

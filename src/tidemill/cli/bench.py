"""``tidemill bench``: what this machine does with a model, measured."""

from __future__ import annotations

import json as jsonlib
from typing import Annotated, Any

import typer

from tidemill.cli.bench_ablate import EXAMPLES as ABLATE_EXAMPLES
from tidemill.cli.bench_ablate import ablate
from tidemill.cli.bench_compare import EXAMPLES as COMPARE_EXAMPLES
from tidemill.cli.bench_compare import compare
from tidemill.cli.bench_peers import EXAMPLES as PEERS_EXAMPLES
from tidemill.cli.bench_peers import peers
from tidemill.cli.bench_report import EXAMPLES as REPORT_EXAMPLES
from tidemill.cli.bench_report import report
from tidemill.cli.bench_run import EXAMPLES as RUN_EXAMPLES
from tidemill.cli.bench_run import run
from tidemill.cli.bench_stub import EXAMPLES as STUB_EXAMPLES
from tidemill.cli.bench_stub import stub
from tidemill.cli.bench_sweep import EXAMPLES as SWEEP_EXAMPLES
from tidemill.cli.bench_sweep import sweep
from tidemill.cli.default import DEFAULT_MODEL, ModelArgument, explained
from tidemill.cli.models_file import ModelsFileOption, named
from tidemill.cli.options import DebugOption, JsonOption, with_settings
from tidemill.core.config import ExecutorConfig

__all__ = ["bench"]

bench = typer.Typer(name="bench", help="Measure servers, and how fast this machine runs a model.", no_args_is_help=True)
bench.command("run", epilog=RUN_EXAMPLES)(run)
bench.command("report", epilog=REPORT_EXAMPLES)(report)
bench.command("compare", epilog=COMPARE_EXAMPLES)(compare)
bench.command("sweep", epilog=SWEEP_EXAMPLES)(sweep)
bench.command("peers", epilog=PEERS_EXAMPLES)(peers)
bench.command("stub", epilog=STUB_EXAMPLES)(stub)
bench.command("ablate", epilog=ABLATE_EXAMPLES)(ablate)

_EXAMPLES = """Examples:

\b
tidemill bench step model.gguf
tidemill bench step model.gguf --profile
tidemill bench step model.gguf --prefill 128 --decode 1x4096 --decode 16x2048
tidemill bench step model.gguf --threads 1 --isa portable --json
"""


@bench.command(epilog=_EXAMPLES)
@with_settings(ExecutorConfig)
def step(
    model: ModelArgument = DEFAULT_MODEL,
    *,
    profile: Annotated[
        bool, typer.Option("--profile", help="Show where the time of each step goes, by kind of work.")
    ] = False,
    prefill: Annotated[
        list[int] | None, typer.Option("--prefill", help="Prompt length to measure; repeatable. [default: 512]")
    ] = None,
    decode: Annotated[
        list[str] | None,
        typer.Option(
            "--decode",
            metavar="STREAMSxCONTEXT",
            help="Streams and tokens before each; repeatable. [default: 1x256 4x256 16x256]",
        ),
    ] = None,
    repeats: Annotated[
        int, typer.Option("--repeats", min=5, max=10_000, help="Steps of each shape; medians count.")
    ] = 15,
    seconds: Annotated[
        float,
        typer.Option("--seconds", min=0.0, max=3600.0, help="Most time for one shape, unless five steps take longer."),
    ] = 8.0,
    host: Annotated[
        bool, typer.Option("--host/--no-host", help="Also measure the engine's own time per step, at 1 and 16 streams.")
    ] = True,
    models_file: ModelsFileOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 (read by main)
    **settings: Any,
) -> None:
    """Time prefill and decoding on the executor, beside the machine's own limits measured in the same run.

    The limits: how fast threads read memory, and how fast they multiply and add floats and bytes with the kernels'
    instruction set. Bytes are counted as in the file. The last line is one JSON object with all figures.
    """
    from tidemill.bench.step import StepBench
    from tidemill.bench.work import parse_decode, prefill_work
    from tidemill.core.settings import engine_config

    works = [prefill_work(count) for count in (prefill or ([] if decode else [512]))]
    works += [parse_decode(text) for text in (decode or ([] if prefill else ["1x256", "4x256", "16x256"]))]
    model, settings = named(model, settings, models_file)
    config = engine_config(model, settings)
    measured = StepBench(works=works, repeats=repeats, seconds=seconds, profile=profile, host=(1, 16) if host else ())
    with explained(model):
        report = measured.run(config)
    if not json:
        print("\n".join(report.lines()))
    print(jsonlib.dumps(report.values))

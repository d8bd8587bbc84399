"""``tidemill bench ablate``: what each strategy brings on a load."""

from __future__ import annotations

import json as jsonlib
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from tidemill.bench.ablation.options import STEP_TOKENS, AblationOptions
from tidemill.cli.default import DEFAULT_MODEL, ModelArgument, explained
from tidemill.cli.models_file import ModelsFileOption, named
from tidemill.cli.options import DebugOption, JsonOption, with_settings
from tidemill.core.config import EngineConfig, ExecutorConfig, ModelConfig, SchedulerConfig
from tidemill.core.settings import engine_config, settings_of

__all__ = ["EXAMPLES", "ablate"]

EXAMPLES = """Examples:

\b
tidemill bench ablate model.gguf --simulate
tidemill bench ablate model.gguf --simulate --step-times steps.json --shared-tokens 64 --kv-memory 64MiB
tidemill bench ablate model.gguf --strategy continuous-batching=static --requests 60 --pairs 3
tidemill bench ablate model.gguf --trace trace.csv --shrink 1 --slo "ttft:p99<5s; e2e:mean<30s" --json
"""


@with_settings(AblationOptions, ModelConfig, SchedulerConfig, ExecutorConfig, EngineConfig)
def ablate(
    model: ModelArgument = DEFAULT_MODEL,
    *,
    strategy: Annotated[
        list[str] | None,
        typer.Option(
            "--strategy",
            metavar="NAME[=TWIN]",
            help="Measure this strategy, or its row for this twin; repeatable. [default: all that act on steps]",
        ),
    ] = None,
    simulate: Annotated[
        bool,
        typer.Option(
            "--simulate", help="Run the real scheduler over measured step times, in seconds instead of minutes."
        ),
    ] = False,
    step_times: Annotated[
        Path | None,
        typer.Option(
            "--step-times",
            metavar="FILE",
            help="With --simulate: read step times from here; what the file lacks is measured and added to it. "
            "From a file the results are always the same.",
        ),
    ] = None,
    models_file: ModelsFileOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 (read by main)
    **settings: Any,
) -> None:
    """Compare each strategy with its slow twin: the highest rate within the objectives, and latencies at one rate.

    All strategies are on but the one of the row. The search for the highest rate takes turns between configurations,
    and pairs at the twin's rate alternate. Steps have at most 128 tokens here unless --max-step-tokens says otherwise:
    what a step takes is a gap in every answer. The last line is one JSON object with all figures.
    """
    from tidemill.bench.ablation.job import AblationJob, report_lines

    own = settings_of(AblationOptions)
    options = AblationOptions(**{name: settings.pop(name) for name in own if name in settings})
    model, settings = named(model, settings, models_file)
    settings.setdefault("max_step_tokens", STEP_TOKENS)
    begin = time.monotonic()

    def tell(name: str, point: Any) -> None:
        seconds = time.monotonic() - begin
        print(f"{seconds:7.1f} s  {point.rate:8.3g} requests/s  {point.share:4.0%} within  {name}", file=sys.stderr)

    job = AblationJob(
        config=engine_config(model, settings),
        options=options,
        strategies=strategy or (),
        simulate=simulate,
        step_times=step_times,
        on_trial=tell,
    )
    with explained(model):
        found = job.run()
    if not json:
        print("\n".join(report_lines(found)))
    print(jsonlib.dumps(found, allow_nan=False))

"""``tidemill trace``: look at, convert, model and draw recorded load."""

from __future__ import annotations

import json as jsonlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tidemill.cli.options import DebugOption, JsonOption
from tidemill.cli.trace_reading import TraceReader, with_reading
from tidemill.core.errors import SetupError

__all__ = ["trace"]

trace = typer.Typer(
    name="trace", help="Look at recorded load, convert it, model it, and make more of it.", no_args_is_help=True
)

TraceArgument = Annotated[str, typer.Argument(metavar="TRACE", help="Trace file of any known format; .gz is unpacked.")]
TracesArgument = Annotated[list[str], typer.Argument(metavar="TRACE...", help="Trace files of any known formats.")]
BlockOption = Annotated[
    int, typer.Option("--block", metavar="N", min=1, help="Tokens per block of the prefix cache that is presumed.")
]

_INFO_EXAMPLES = """Examples:

\b
tidemill trace info BurstGPT_1.csv --tenant "ChatGPT Conversation log"
tidemill trace info conversation_trace.jsonl --block 512
tidemill trace info AzureLLMInferenceTrace_conv.csv --start 600 --duration 300 --json
tidemill trace info sharegpt.json --tokenizer model.gguf
"""


@trace.command(epilog=_INFO_EXAMPLES)
@with_reading
def info(
    source: TraceArgument,
    *,
    block: BlockOption = 16,
    read: TraceReader,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 (read by main)
) -> None:
    """Show what a trace is like: rate, burstiness, lengths, sessions, and how much a prefix cache could save.

    The last line is one JSON object with all figures.
    """
    from tidemill.bench.traces.figures import TraceFigures

    found = TraceFigures.of(read(source), block=block)
    _print(found.lines(), found.values, json=json)


_CONVERT_EXAMPLES = """Examples:

\b
tidemill trace convert BurstGPT_1.csv burst.jsonl --start 86400 --duration 3600
tidemill trace convert AzureLLMInferenceTrace_conv.csv slow.jsonl --rate 0.5
tidemill trace convert conversation_trace.jsonl tenth.jsonl --thin 0.1 --thin-seed 7
tidemill trace convert sharegpt.json - --count 100 --tokenizer model.gguf | head
"""


@trace.command(epilog=_CONVERT_EXAMPLES)
@with_reading
def convert(
    source: TraceArgument,
    out: Annotated[str, typer.Argument(metavar="OUT", help="JSON lines file to write; - for standard output.")],
    *,
    block: BlockOption = 16,
    read: TraceReader,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 (read by main)
) -> None:
    """Write a trace, or a part of it, or the same at another pace, as Tidemill's own JSON lines.

    The last line is one JSON object with the figures of what was written.
    """
    from tidemill.bench.traces.figures import TraceFigures

    made = read(source)
    _write(made.rows, out)
    found = TraceFigures.of(made, block=block)
    _print(found.lines(), {**found.values, "out": out}, json=json, error=out == "-")


_FIT_EXAMPLES = """Examples:

\b
tidemill trace fit conversation_trace.jsonl mooncake.json
tidemill trace fit BurstGPT_1.csv api.json --tenant "GPT-4 API log" --source "BurstGPT 1, GPT-4 API, CC-BY 4.0"
tidemill trace synth mooncake.json more.jsonl --rate 2 --duration 600
"""


@trace.command(epilog=_FIT_EXAMPLES)
@with_reading
def fit(
    source: TraceArgument,
    out: Annotated[str, typer.Argument(metavar="OUT", help="JSON file for the model.")],
    *,
    text: Annotated[
        str | None, typer.Option("--source", help="What the model says it was made from. [default: the file's name]")
    ] = None,
    block: BlockOption = 16,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Seed of the trace to compare with.")] = 0,
    read: TraceReader,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 (read by main)
) -> None:
    """Fit a model to a trace: rate over time and gaps, joint lengths, sessions, shared prefixes. It holds no request.

    Shows how far a trace made by the model is from the real one. The last line is one JSON object with that.
    """
    from tidemill.bench.traces.compare import Comparison
    from tidemill.bench.traces.fit import fit_model
    from tidemill.bench.traces.model import model_json
    from tidemill.bench.traces.synth import synthesised

    real = read(source)
    model = fit_model(real, source=text)
    content = model_json(model)
    _writing(out).write_bytes(content)
    compared = Comparison.of(real, synthesised(model, seed=seed), block=block)
    notes = [f"  note       {note}" for note in model.notes]
    _print(
        [*compared.lines(), *notes, f"{out}: {len(content):,} bytes"],
        {**compared.values, "notes": list(model.notes), "out": out, "bytes": len(content)},
        json=json,
    )


_SYNTH_EXAMPLES = """Examples:

\b
tidemill trace synth azure-conv-2023 load.jsonl --rate 2 --duration 300
tidemill trace synth mooncake-conversation load.jsonl --count 1000 --seed 7
tidemill trace synth my-model.json - --count 20
"""


@trace.command(epilog=_SYNTH_EXAMPLES)
def synth(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="File that fit wrote, or azure-code-2023, azure-conv-2023, burstgpt-conv, mooncake-conversation.",
        ),
    ],
    out: Annotated[str, typer.Argument(metavar="OUT", help="JSON lines file to write; - for standard output.")],
    *,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Same seed, same trace.")] = 0,
    duration: Annotated[
        float | None,
        typer.Option(
            "--duration", metavar="SECONDS", help="Length of the trace. [default: that of the model's profile]"
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate",
            metavar="X",
            help="Requests per second on average. [default: the model's, or --count over --duration]",
        ),
    ] = None,
    count: Annotated[int | None, typer.Option("--count", metavar="N", min=1, help="Only the first N requests.")] = None,
    ticks: Annotated[
        bool,
        typer.Option(
            "--ticks/--no-ticks",
            help="Stamp arrivals as the real trace's clock did, many at once where it was coarse, or in between.",
        ),
    ] = True,
    block: BlockOption = 16,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 (read by main)
) -> None:
    """Make a trace by a model: as long, as fast and as many requests as wanted, always the same for the same seed.

    The last line is one JSON object with the figures of what was made.
    """
    from tidemill.bench.traces.figures import TraceFigures
    from tidemill.bench.traces.model import load_model
    from tidemill.bench.traces.synth import synthesised

    made = synthesised(
        load_model(model), seed=seed, duration=duration, rate=rate, count=count, ticks=ticks, name=Path(model).stem
    )
    if not made.rows:
        raise SetupError(f"{model}: no request came in that time; raise --duration or --rate, or give --count alone")
    _write(made.rows, out)
    found = TraceFigures.of(made, block=block)
    _print(found.lines(), {**found.values, "seed": seed, "out": out}, json=json, error=out == "-")


_PLOT_EXAMPLES = """Examples:

\b
tidemill trace plot AzureLLMInferenceTrace_conv.csv --out azure.svg
tidemill trace plot conversation_trace.jsonl made.jsonl --block 512 --out compared.svg
tidemill trace plot a.csv b.jsonl --duration 600 --rate 1 --out shapes.svg
"""


@trace.command(epilog=_PLOT_EXAMPLES)
@with_reading
def plot(
    sources: TracesArgument,
    *,
    out: Annotated[str, typer.Option("--out", metavar="FILE", help="SVG file to write.")] = "trace.svg",
    block: BlockOption = 16,
    read: TraceReader,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 (read by main)
) -> None:
    """Draw one to four traces over each other: arrivals, lengths, gaps, prefix-hit ceiling. Options hold for each.

    The last line is one JSON object: the figures of each trace, and the distances of the first from the others.
    """
    from tidemill.bench.traces.compare import Comparison
    from tidemill.bench.traces.figures import TraceFigures
    from tidemill.bench.traces.plot import traces_svg

    traces = [read(source) for source in sources]
    _writing(out).write_text(traces_svg(traces, block=block), encoding="utf-8")
    first, *others = traces
    compared = [Comparison.of(first, other, block=block) for other in others]
    lines = [line for one in compared for line in one.lines()] or TraceFigures.of(first, block=block).lines()
    values = {
        "traces": [TraceFigures.of(one, block=block).values for one in traces],
        "ks": [one.values["ks"] for one in compared],
        "out": out,
    }
    _print([*lines, out], values, json=json)


def _write(rows: Sequence[Any], out: str) -> None:
    from tidemill.bench.traces.canonical import write_rows

    if out == "-":
        write_rows(rows, sys.stdout)
        return
    with _writing(out).open("w", encoding="utf-8") as file:
        write_rows(rows, file)


def _writing(out: str) -> Path:
    """A path that a file can be written to."""
    path = Path(out)
    if path.is_dir() or not path.parent.is_dir():
        raise SetupError(f"{out}: no file can be written there; name one in a folder that exists")
    return path


def _print(lines: Sequence[str], values: Any, *, json: bool, error: bool = False) -> None:
    """Text for people, then one line of JSON; only that with ``--json``."""
    if not json:
        print("\n".join(lines), file=sys.stderr if error else sys.stdout)
    print(jsonlib.dumps(values, ensure_ascii=False), file=sys.stderr if error else sys.stdout)

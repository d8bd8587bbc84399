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

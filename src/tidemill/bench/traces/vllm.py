"""Files of vLLM's benchmarks: the prompts they read (``custom``) and the results they save in detail.

Its other inputs are formats of their own: ShareGPT's conversations, BurstGPT's columns, Mooncake's timed traces.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tidemill.bench.traces.files import json_records
from tidemill.bench.traces.options import ReadOptions
from tidemill.bench.traces.record import Record
from tidemill.bench.traces.row import TraceRow
from tidemill.bench.traces.text import TextMeasure
from tidemill.bench.traces.trace import Notes, Trace

__all__ = ["PROMPT_KEYS", "RESULT_KEYS", "load_prompts", "load_results"]

PROMPT_KEYS = frozenset({"prompt"})
RESULT_KEYS = frozenset({"input_lens", "output_lens"})


def load_prompts(path: Path, options: ReadOptions) -> Trace:
    """Prompts as text or token ids, with ``output_tokens``. They hold no times; prompts that begin alike share."""
    notes = Notes()
    notes.say("prompts have no arrivals: all requests are at 0 s")
    rows = _prompts(path, options, notes)
    return Trace.of(rows, name=path.name, read_as="vllm-prompts", notes=notes)


def _prompts(path: Path, options: ReadOptions, notes: Notes) -> Iterator[TraceRow]:
    measure: TextMeasure | None = None
    for record in json_records(path):
        prompt = record.values.get("prompt")
        if isinstance(prompt, list) and all(isinstance(one, int) for one in prompt):
            prefix = TextMeasure.id_blocks(prompt)
        elif isinstance(prompt, str):
            measure = measure or TextMeasure(options.encode, notes)
            prefix = measure.blocks(prompt)
        else:
            record.refuse("prompt", "is neither text nor token ids", 'write "prompt": "..."')
        if not prefix:
            notes.count("rows have an empty prompt and were left out")
            continue
        yield TraceRow(
            at=0.0,
            prompt_tokens=sum(piece.tokens for piece in prefix),
            output_tokens=_answer(record, options),
            prefix=prefix,
        )


def _answer(record: Record, options: ReadOptions) -> int:
    if record.has("output_tokens"):
        return record.count("output_tokens", least=1)
    if options.output_tokens is None:
        record.refuse("output_tokens", "is missing", "add it, or give --output-tokens for all such rows")
    return options.output_tokens


def load_results(path: Path, options: ReadOptions) -> Trace:
    """A result saved with ``--save-result --save-detailed``: lengths of each request, and starts where it has them."""
    notes = Notes()
    rows = [row for record in json_records(path) for row in _results(record, options, notes)]
    return Trace.of(rows, name=path.name, read_as="vllm-results", notes=notes)


def _results(record: Record, options: ReadOptions, notes: Notes) -> Iterator[TraceRow]:
    columns = {
        key: record.values[key]
        for key in ("input_lens", "output_lens", "start_times", "errors")
        if key in record.values
    }
    for key, values in columns.items():
        if not isinstance(values, list) or len(values) != len(columns["input_lens"]):
            record.refuse(key, "is no list with a value for each request", "save the result with --save-detailed")
    starts = columns.get("start_times")
    if not starts:
        notes.say("the result has no start_times: all requests are at 0 s")
    for place, prompt in enumerate(columns["input_lens"]):
        one = Record(file=record.file, line=record.line, values={key: values[place] for key, values in columns.items()})
        failed = bool(columns.get("errors") and one.text("errors"))
        output = one.count("output_lens")
        if failed or output == 0:
            if options.empty == "drop":
                notes.count("requests failed or have no output tokens and were left out")
                continue
            notes.count("requests failed or have no output tokens and ask for at least one")
        at = one.number("start_times") - min(map(float, starts)) if starts else 0.0
        del prompt
        yield TraceRow(at=at, prompt_tokens=one.count("input_lens", least=1), output_tokens=max(1, output))

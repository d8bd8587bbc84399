"""``tidemill bench compare``: two targets in turns, or two saved runs."""

from __future__ import annotations

import asyncio
import json as jsonlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemill.bench.load.options import LoadOptions, ServerOptions
from tidemill.bench.load.prompt_options import PromptOptions
from tidemill.cli.bench_target import BenchTarget, options_of
from tidemill.cli.default import DEFAULT_MODEL
from tidemill.cli.models_file import ModelsFileOption
from tidemill.cli.options import SIZES, DebugOption, JsonOption, parse_size, with_settings
from tidemill.core.errors import ConfigError

if TYPE_CHECKING:
    from tidemill.bench.comparison.ratios import Round
    from tidemill.bench.job import Done, Job

__all__ = ["EXAMPLES", "compare"]

EXAMPLES = """Examples:

\b
tidemill bench compare results/before results/after
tidemill bench compare http://127.0.0.1:8000/v1 http://127.0.0.1:8001/v1 --rate 4 --duration 20 --rounds 6
tidemill bench compare model.gguf model.gguf --b numerics=exact --concurrency 8 --requests 40
tidemill bench compare small.gguf large.gguf --rate 2 --requests 40 --report both.html
"""


@with_settings(LoadOptions, ServerOptions, PromptOptions, without=("url",))
def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A folder of bench run --out, a base URL, or a model.")],
    b: Annotated[str, typer.Argument(metavar="B", help="As A; both saved, or both live.")],
    *,
    set_a: Annotated[
        list[str] | None, typer.Option("--a", metavar="SETTING=VALUE", help="Engine setting of model A; repeatable.")
    ] = None,
    set_b: Annotated[
        list[str] | None, typer.Option("--b", metavar="SETTING=VALUE", help="Engine setting of model B; repeatable.")
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=1, max=1000, help="Rounds of a run on A, then one on B.")] = 5,
    trace: Annotated[
        Path | None, typer.Option("--trace", metavar="FILE", help="Replay this trace in each run.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="Write a page with the last run of both.")
    ] = None,
    models_file: ModelsFileOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 (read by main)
    **settings: Any,
) -> None:
    """Compare two servers, models or settings, measured in turns (A, B, A, B, ...), or two runs that were saved.

    Both get the same arrivals and lengths, and prompts of their own. Each figure is given as B / A with a bootstrap
    interval; what has 1 in it cannot be told apart. The last line is one JSON object.
    """
    from tidemill.bench.comparison.verdict import comparison_lines, comparison_values
    from tidemill.bench.report.page import report_page, write_page
    from tidemill.bench.report.shown import ShownRun

    saved = [Path(name) for name in (a, b) if (Path(name) / "run.json").is_file()]
    shown: Sequence[ShownRun]
    if saved:
        if len(saved) == 1:
            raise ConfigError(f"{saved[0]} is a saved run and the other side is none; save both, or none", param="b")
        if typed := [*settings, *(["a"] if set_a else []), *(["b"] if set_b else []), *(["trace"] if trace else [])]:
            raise ConfigError(f"{typed[0]} is of a new measurement; these runs are saved", param=typed[0])
        shown = [ShownRun.read(folder) for folder in saved]
        measured, names = [_round_of(shown)], (a, b)
    else:
        job = _job(settings, trace, progress=not json)
        targets = [
            _target(name, own, settings, models_file, side)
            for name, own, side in ((a, set_a or (), "a"), (b, set_b or (), "b"))
        ]
        measured, shown = asyncio.run(_in_turns(job, targets, rounds, (set_a or (), set_b or ())))
        names = (shown[0].name, shown[1].name)
    values = comparison_values(names, measured)
    values["conditions_differ"] = _differences(shown[0].run, shown[1].run)
    values["valid"] = all(one.figures["valid"] for one in shown)
    if report is not None:
        write_page(report, report_page(shown))
    if not json:
        lines = [*comparison_lines(values)]
        lines += [f"differs in {name}: {one} / {other}" for name, (one, other) in values["conditions_differ"].items()]
        lines += [f"{one.name} DOES NOT COUNT: {why}" for one in shown for why in one.figures["complaints"]]
        print("\n".join(lines))
    print(jsonlib.dumps(values))
    if not values["valid"] or any(values["failed"]):
        raise typer.Exit(1)


def _job(settings: dict[str, Any], trace: Path | None, *, progress: bool) -> Job:
    from tidemill.bench.job import Job
    from tidemill.bench.traces.formats import load_trace

    return Job(
        load=options_of(LoadOptions, settings),
        prompts=options_of(PromptOptions, settings),
        rows=None if trace is None else load_trace(trace).rows,
        progress=progress,
    )


def _target(name: str, own: Sequence[str], settings: dict[str, Any], models_file: str | None, side: str) -> BenchTarget:
    if "://" not in name:
        shared = {key: value for key, value in settings.items() if key in LoadOptions.__dataclass_fields__}
        return BenchTarget.of(name, None, {**shared, **dict(_setting(text, side) for text in own)}, models_file)
    if own:
        raise ConfigError(f"{side}: settings are of an engine in this command; {name} is a server", param=side)
    return BenchTarget.of(DEFAULT_MODEL, None, {**settings, "url": name}, models_file)


def _setting(text: str, side: str) -> tuple[str, Any]:
    """``NAME=VALUE``; numbers and true or false are read as such."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"{side} must be like numerics=exact, not {text!r}", param=side)
    name = name.strip().replace("-", "_")
    if name in SIZES:
        return name, parse_size(value)
    try:
        return name, jsonlib.loads(value)
    except ValueError:
        return name, {"on": True, "off": False}.get(value, value)


async def _in_turns(
    job: Job, targets: Sequence[BenchTarget], rounds: int, own: tuple[Sequence[str], Sequence[str]]
) -> tuple[list[Round], list[Any]]:
    """The rounds, and the last run of each side as a report shows it."""
    import dataclasses

    from tidemill.bench.comparison.ratios import Round
    from tidemill.bench.measurement import conditions
    from tidemill.bench.report.shown import ShownRun

    measured: list[Round] = []
    last: list[Done] = []
    complaints: list[list[str]] = [[], []]
    for number in range(rounds):
        last = []
        for side, target in enumerate(targets):
            load = dataclasses.replace(job.load, seed=job.load.seed + number)
            # the same load, of other tokens: where both are one server, B must not find A's prompts in its cache
            seeded = dataclasses.replace(job, load=load, prompt_seed=2 * (job.load.seed + number) + side)
            last.append(await target.measured(seeded))
            complaints[side] += last[side].measurement.run.complaints
        one, other = (done.measurement.run for done in last)
        measured.append(Round(a=one.records, b=other.records, a_seconds=one.seconds, b_seconds=other.seconds))
    shown = []
    for side, (target, done) in enumerate(zip(targets, last, strict=True)):
        words = " ".join([done.target, *own[side]])
        figures = {**done.values, "complaints": complaints[side], "valid": not complaints[side]}
        run = {"conditions": conditions(), **job.asked(), **target.described(), "figures": figures}
        records, states = done.measurement.run.records, done.measurement.states
        shown.append(ShownRun(name=words, records=records, states=states, run=run))
    return measured, shown


def _round_of(shown: Sequence[Any]) -> Round:
    from tidemill.bench.comparison.ratios import Round

    a, b = shown
    return Round(a=a.records, b=b.records, a_seconds=a.figures["seconds"], b_seconds=b.figures["seconds"])


def _differences(a: Any, b: Any) -> dict[str, list[str]]:
    """Conditions and options in which two runs differ, the time apart."""
    from tidemill.bench.report.page import flat

    one, other = (dict(flat({name: run[name] for name in run if name != "figures"})) for run in (a, b))
    names = dict.fromkeys([*one, *other])
    return {
        name: [one.get(name, "-"), other.get(name, "-")]
        for name in names
        if one.get(name) != other.get(name) and name != "conditions.time"
    }

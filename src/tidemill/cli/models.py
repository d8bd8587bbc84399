"""``tidemill models``: what is on this machine, fetching, removing, and what a model is."""

from __future__ import annotations

import contextlib
import dataclasses
import json as jsonlib
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemill.cli.models_file import ModelsFile, ModelsFileOption, named, read_models_file
from tidemill.cli.options import DebugOption, JsonOption
from tidemill.core.errors import ConfigError, DoesNotFit, ModelLoadError

if TYPE_CHECKING:
    from tidemill.models.description import ModelDescription
    from tidemill.models.loading import ModelFiles
    from tidemill.models.loading.hub_name import HubName
    from tidemill.models.measured import Measurement
    from tidemill.models.memory_plan import MemoryPlan

__all__ = ["models"]

models = typer.Typer(
    name="models",
    help="The models on this machine: list them, fetch, remove, and describe one.",
    rich_markup_mode=None,
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="A Hugging Face name, or one of the models file.")]
AnyModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="A .gguf file, a model folder, a Hugging Face name, or your own name.")
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@models.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@models.command("list")
def list_models(
    models_file: ModelsFileOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 (read by main)
) -> None:
    """List the models in the Hugging Face cache, the names in the models file, and the bundled model."""
    rows = [*_own_names(read_models_file(models_file)), *_cached_rows(), *_bundled_rows()]
    if json:
        print(jsonlib.dumps({"models": rows}))
        return
    if not rows:
        print("There are no models here yet: tidemill models get NAME fetches one.")
        return
    print("\n".join(_table(rows)))


@models.command()
def get(
    name: NameArgument,
    models_file: ModelsFileOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 (read by main)
) -> None:
    """Fetch a model from Hugging Face, unless it is here, and print where it is."""
    from tidemill.models.loading import resolve
    from tidemill.models.loading.hub import licence_text

    hub_name = _hub_name(name, models_file, "there is nothing to fetch")
    files = resolve(str(hub_name))
    assert files.snapshot is not None
    done = {
        "name": str(hub_name),
        "path": str(files.path),
        "revision": files.revision,
        "size": _size(files),
        "licence": licence_text(files.snapshot),
    }
    print(jsonlib.dumps(done) if json else f"{done['name']}  {_bytes(_size(files))}  {files.revision}\n{files.path}")


@models.command()
def rm(
    name: NameArgument,
    yes: YesOption = False,
    models_file: ModelsFileOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 (read by main)
) -> None:
    """Remove a model from the Hugging Face cache: a file of a repository, a revision, or all of it."""
    from tidemill.models.loading.hub_cache import plan_removal

    removal = plan_removal(_hub_name(name, models_file, "remove it yourself"))
    if not yes:
        if not sys.stdin.isatty():
            raise ConfigError("removing a model asks first, and there is no terminal to ask; add --yes", param="yes")
        if not typer.confirm(f"Remove {removal.name} ({_bytes(removal.bytes)}) from the cache?"):
            print("Nothing is removed.")
            return
    removal.run()
    done = {"name": str(removal.name), "freed": removal.bytes}
    print(jsonlib.dumps(done) if json else f"Removed {removal.name}; {_bytes(removal.bytes)} are free again.")


@models.command()
def info(
    model: AnyModelArgument,
    models_file: ModelsFileOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 (read by main)
) -> None:
    """Describe a model on this machine: architecture, formats, lengths, tokenizer, licence, memory; fetches nothing."""
    import msgspec

    from tidemill.cli.plan import plan_dict
    from tidemill.core.machine import available_memory
    from tidemill.core.settings import engine_config
    from tidemill.models.description import describe
    from tidemill.models.loading import load_model, resolve
    from tidemill.models.measured import measurements
    from tidemill.models.memory_plan import plan_memory

    path, settings = named(model, {}, models_file)
    config = engine_config(path, settings)
    files = resolve(path, config.model.revision, cached_only=True)
    here = dataclasses.replace(config.model, path=str(files.path), name=config.model.name or files.name, revision=None)
    loaded = load_model(here)
    found = describe(loaded, files)
    plan: MemoryPlan | None = None
    problem = None
    try:
        plan = plan_memory(loaded, dataclasses.replace(config, model=here), available_memory())
    except DoesNotFit as error:
        problem = error.message
    runs = measurements(files.path, config.executor.cache_dir)
    if json:
        memory = plan_dict(plan) if plan else {"problem": problem}
        measured = [msgspec.to_builtins(run) for run in runs]
        print(jsonlib.dumps(dataclasses.asdict(found) | {"memory": memory, "measured": measured}))
        return
    print("\n".join([*_described(found), *_measured(runs), *(plan.explain() if plan else [f"memory: {problem}"])]))


def _hub_name(name: str, models_file: str | None, otherwise: str) -> HubName:
    """The Hugging Face name that a command's argument means."""
    from pathlib import Path

    from tidemill.models.loading.hub_name import parse_hub_name

    model, settings = named(name, {}, models_file)
    parsed = parse_hub_name(model)
    if parsed is None or Path(model).expanduser().exists():
        raise ConfigError(f"{model}: is not a Hugging Face name (org/name); {otherwise}", param="name")
    return parsed.pinned(settings.get("revision"))


def _own_names(file: ModelsFile) -> Iterator[dict[str, Any]]:
    from tidemill.models.loading import resolve

    for entry in file.entries.values():
        files: ModelFiles | None = None
        with contextlib.suppress(ModelLoadError, ConfigError):  # then it is listed as not being here
            files = resolve(entry.model, entry.settings.get("revision"), cached_only=True)
        size = _size(files) if files else None
        yield {
            "name": entry.name,
            "kind": "own",
            "model": entry.model,
            "size": size,
            "revision": files.revision if files and size else entry.settings.get("revision"),
            "path": str(files.path) if files and size else None,
            "whole": bool(size),
        }


def _cached_rows() -> Iterator[dict[str, Any]]:
    from tidemill.models.loading.hub_cache import cached_models

    for row in cached_models():
        yield {
            "name": str(row.name),
            "kind": "hub",
            "model": str(row.name),
            "size": row.size,
            "revision": row.revision,
            "path": str(row.path),
            "whole": row.whole,
        }


def _bundled_rows() -> Iterator[dict[str, Any]]:
    from tidemill.models.loading import bundled_model

    path = bundled_model()
    if path is not None:
        yield {
            "name": path.stem,
            "kind": "bundled",
            "model": str(path),
            "size": path.stat().st_size,
            "revision": None,
            "path": str(path),
            "whole": True,
        }


def _table(rows: list[dict[str, Any]]) -> Iterator[str]:
    cells = [("name", "kind", "size", "revision", "path"), *map(_cells, rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(4)]
    for row in cells:
        name, kind, size, revision = (cell.ljust(width) for cell, width in zip(row[:4], widths, strict=True))
        yield f"{name}  {kind}  {size.strip().rjust(widths[2])}  {revision}  {row[4]}".rstrip()


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    place = row["path"] or f"{row['model']} (not on this machine)"
    if not row["whole"] and row["path"]:
        place += " (not whole: tidemill models get fetches the rest)"
    revision = (row["revision"] or "-")[:12]
    return row["name"], row["kind"], "-" if row["size"] is None else _bytes(row["size"]), revision, place


def _described(found: ModelDescription) -> Iterator[str]:
    lines = {
        "path": found.path,
        "revision": found.revision,
        "weights": f"{_bytes(found.size)} in {found.files} file{'' if found.files == 1 else 's'}",
        "architecture": found.architecture,
        "parameters": f"{found.parameters:,}",
        "context length": f"{found.context_length} tokens",
        "vocabulary": f"{found.vocab_size} tokens",
        "tokenizer": found.tokenizer,
        "chat template": ", ".join(found.chat_templates) or "none: chats need --chat-template",
        "end tokens": ", ".join(f"{token} {text}".strip() for token, text in found.end_tokens.items()) or "none",
        "licence": found.licence,
    }
    yield found.name
    for name, value in lines.items():
        if value is not None:
            yield f"  {name:<16}{value}"
    for name, share in found.formats.items():
        yield f"  {name:<16}{share.tensors} tensor{'' if share.tensors == 1 else 's'}, {_bytes(share.bytes)}"


def _measured(runs: Sequence[Measurement]) -> Iterator[str]:
    """What was measured, a few lines for each machine and way to run."""
    if not runs:
        yield "measured on this machine: nothing yet; a run of serve, chat or generate leaves its speed here"
    for run in runs:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.when))
        yield f"measured {when} on {run.machine}"
        yield f"  {'ran':<16}{run.executor}"
        how = "from the packed cache" if run.from_cache else "packed"
        yield f"  {'load':<16}{run.load_seconds:.2f} s, weights {how}"
        for name, rate in (("prompt", run.prefill), ("one stream", run.decode)):
            yield f"  {name:<16}{'too few tokens to tell' if rate is None else f'{rate:.1f} tokens/s'}"


def _size(files: ModelFiles) -> int:
    from tidemill.models.description import files_of

    return sum(path.stat().st_size for path in files_of(files.path) if path.is_file())


def _bytes(count: int) -> str:
    from tidemill.models.memory_plan import format_bytes

    return format_bytes(count)

"""``tidemill cache``: what Tidemill keeps on this machine from one start to the next."""

from __future__ import annotations

import dataclasses
import json as jsonlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidemill.cli.options import DebugOption, JsonOption
from tidemill.core.cache_folder import CacheFolder, CacheUnusable, cache_base
from tidemill.core.errors import ConfigError

if TYPE_CHECKING:
    from tidemill.executors.native.packed_entries import CachedEntry, PackedEntries

__all__ = ["cache"]

cache = typer.Typer(
    name="cache",
    help="Packed weights kept from one start to the next: list them, clear them.",
    rich_markup_mode=None,
)

FolderOption = Annotated[
    str | None,
    typer.Option("--cache-dir", metavar="FOLDER", help="The cache folder; default: TIDEMILL_CACHE, or the user's own."),
]
NamesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[NAME]...", help="Entries as listed, or the beginnings of their names.")
]


@cache.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@cache.command("list")
def list_entries(
    cache_dir: FolderOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 (read by main)
) -> None:
    """List the packed weights that are kept: size, last use, and the file they were made from."""
    base, entries = _opened(cache_dir)
    rows = entries.list() if entries else []
    if json:
        print(jsonlib.dumps({"folder": str(base), "entries": [dataclasses.asdict(row) for row in rows]}))
        return
    for row in rows:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(row.used))
        print(f"{row.name[:12]}  {_bytes(row.size):>8}  {used}  {row.label or '(cannot be read)'}")
    print(f"{len(rows)} in {base}, {_bytes(sum(row.size for row in rows))}")


@cache.command()
def clear(
    names: NamesArgument = None,
    cache_dir: FolderOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 (read by main)
) -> None:
    """Remove packed weights, all or those named; what a running process uses stays. They are made again when needed."""
    _, entries = _opened(cache_dir)
    rows = _chosen(entries.list() if entries else [], names or [])
    gone = [row for row in rows if entries and entries.remove(row.name)]
    done = {"removed": len(gone), "freed": sum(row.size for row in gone), "in_use": len(rows) - len(gone)}
    if json:
        print(jsonlib.dumps(done))
        return
    left = f"; {done['in_use']} in use stay" if done["in_use"] else ""
    print(f"Removed {done['removed']}; {_bytes(done['freed'])} are free again{left}.")


def _opened(cache_dir: str | None) -> tuple[Path, PackedEntries | None]:
    """The base folder, and its entries if there are any yet."""
    from tidemill.executors.native.packed_entries import FOLDER, PackedEntries

    try:
        base = cache_base(cache_dir)
        if not (base / FOLDER).exists():
            return base, None
        return base, PackedEntries(CacheFolder.opened(base, FOLDER, create=False))
    except CacheUnusable as error:
        raise ConfigError(str(error), param="cache_dir") from error


def _chosen(rows: list[CachedEntry], names: list[str]) -> list[CachedEntry]:
    for name in names:
        if not any(row.name.startswith(name) for row in rows):
            raise ConfigError(f"{name}: no entry is called so; tidemill cache list shows them", param="names")
    return [row for row in rows if not names or row.name.startswith(tuple(names))]


def _bytes(count: int) -> str:
    from tidemill.models.memory_plan import format_bytes

    return format_bytes(count)

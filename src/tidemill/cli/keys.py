"""``tidemill keys``: the API keys of a server, hashed, in a file that a running server reads again."""

from __future__ import annotations

import dataclasses
import json as jsonlib
import sys
import time
from typing import Annotated

import typer

from tidemill.cli.options import DebugOption, JsonOption
from tidemill.core.errors import ConfigError
from tidemill.serve.access.key_file import KeyFile, KeyRecord, new_key

__all__ = ["keys"]

keys = typer.Typer(
    name="keys",
    help="API keys of tidemill serve --keys-file: add, list, revoke. A running server takes changes at once.",
    rich_markup_mode=None,
)

FileOption = Annotated[
    str, typer.Option("--keys-file", metavar="FILE", help="The file of keys.", envvar="TIDEMILL_KEYS_FILE")
]


@keys.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@keys.command()
def add(  # noqa: PLR0917 (options, given by name)
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose key it is; shown in lists and logs.")],
    keys_file: FileOption,
    tenant: Annotated[
        str, typer.Option(metavar="TENANT", help="Share kept keys and values with other keys of this tenant.")
    ] = "",
    admin: Annotated[bool, typer.Option("--admin", help="May drain the server and reset everybody's cache.")] = False,
    requests_per_minute: Annotated[int | None, typer.Option(metavar="N", help="Most requests per minute.")] = None,
    tokens_per_minute: Annotated[
        int | None, typer.Option(metavar="N", help="Most tokens per minute, prompts and answers together.")
    ] = None,
    concurrent_requests: Annotated[int | None, typer.Option(metavar="N", help="Most requests at once.")] = None,
    weight: Annotated[
        float, typer.Option(metavar="W", help="Share of the work beside other tenants', where --order has fair.")
    ] = 1.0,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 (read by main)
) -> None:
    """Make a key and print it, this once: the file keeps its hash. Example: tidemill keys add alice --keys-file
    keys.jsonl --tokens-per-minute 20000"""
    key, record = new_key(
        name,
        tenant=tenant,
        role="admin" if admin else "user",
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
        concurrent_requests=concurrent_requests,
        weight=weight,
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )
    KeyFile(keys_file).add(record)
    if json:
        print(jsonlib.dumps({"key": key, **_shown(record)}))
        return
    print(key)
    print(f"This is the key {record.id} of {name}; it is not kept anywhere and cannot be shown again.", file=sys.stderr)


@keys.command("list")
def list_keys(
    keys_file: FileOption,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 (read by main)
) -> None:
    """List the keys: id, role, name, tenant and limits."""
    records = KeyFile(keys_file).read()
    if json:
        print(jsonlib.dumps([_shown(record) for record in records]))
        return
    for record in records:
        tenant = f" ({record.tenant})" if record.tenant else ""
        print(f"{record.id}  {record.role:5}  {record.created:20}  {record.name}{tenant}  {_limits(record)}")


def _limits(record: KeyRecord) -> str:
    said = [f"{value} {name.replace('_', ' ')}" for name, value in dataclasses.asdict(record.limits).items() if value]
    return ", ".join(said) or "no limits"


@keys.command()
def revoke(
    name: Annotated[str, typer.Argument(metavar="KEY", help="A key's id, or the name of one or several.")],
    keys_file: FileOption,
    debug: DebugOption = False,  # noqa: ARG001 (read by main)
) -> None:
    """Take a key out of the file: its next request is refused, answers that run go on."""
    gone = KeyFile(keys_file).remove(name)
    if not gone:
        raise ConfigError(f"{name}: no key has this id or name; tidemill keys list shows them", param="name")
    print(f"Revoked {', '.join(record.id for record in gone)}.")


def _shown(record: KeyRecord) -> dict[str, object]:
    """What may be shown of a line: all but salt and hash."""
    return {name: value for name, value in dataclasses.asdict(record).items() if name not in ("salt", "sha256")}

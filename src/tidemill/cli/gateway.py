"""``tidemill gateway``: one door before many engines."""

from __future__ import annotations

import json as jsonlib
import os
from pathlib import Path
from typing import Annotated, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import typer
from typer.core import TyperGroup

from tidemill.cli.options import DebugOption, JsonOption
from tidemill.core.errors import ConfigError, TidemillError

__all__ = ["gateway"]


class _OrConfig(TyperGroup):
    """``tidemill gateway config.yaml`` is ``tidemill gateway run config.yaml``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            args = ["run", *args]
        return super().parse_args(ctx, args)


gateway = typer.Typer(
    cls=_OrConfig,
    help="Route requests over several engines: `tidemill gateway config.yaml`.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
ConfigArgument = Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML file of settings, see docs/gateway.md.")]
_RUN_EXAMPLES = """Examples:

\b
tidemill gateway config.yaml
curl http://127.0.0.1:8080/v1/models

\b
config.yaml:
engines:
- {name: smol, model: model.gguf, replicas: {min: 1, max: 2}}
replicas:
- {name: a, url: "http://127.0.0.1:8001/v1", engine: tidemill}
- {name: b, url: "http://127.0.0.1:8002/v1", engine: llama.cpp}
"""
_EXPLAIN_EXAMPLES = """Examples:

\b
tidemill gateway explain 4be1c7d2
tidemill gateway explain 4be1c7d2 --url http://gateway:8080 --json
"""

_RESTART_EXAMPLES = """Examples:

\b
tidemill gateway restart
tidemill gateway restart http://gateway:8080 --engine smol
tidemill gateway restart --no-wait
"""


@gateway.command("run", epilog=_RUN_EXAMPLES)
def run(
    config: ConfigArgument,
    *,
    debug: DebugOption = False,  # noqa: ARG001 (read by main)
) -> None:
    """Serve /v1 over the replicas in a file until a signal ends it; SIGHUP reads the file again."""
    from tidemill.gateway.server import run_gateway

    run_gateway(config, say=lambda line: print(line, flush=True))


@gateway.command("check")
def check(
    config: ConfigArgument,
    *,
    debug: DebugOption = False,  # noqa: ARG001 (read by main)
) -> None:
    """Say whether a file of settings is right, and look at the replicas in it once."""
    import asyncio

    from tidemill.core.clock import SystemClock
    from tidemill.gateway.config import read_config
    from tidemill.gateway.discovery.discovery import Discovery
    from tidemill.gateway.fleet import Fleet
    from tidemill.serve.listener import check_config

    found = read_config(config)
    check_config(found.door)

    async def looked() -> Fleet:
        fleet = Fleet(found, SystemClock(), discovery=Discovery(found))
        await fleet.start()
        await fleet.close()
        return fleet

    fleet = asyncio.run(looked())
    print(f"{config}: right; {len(fleet.upstreams)} replicas, policy {found.policy}")
    for own in found.engines:
        print(f"  {own.name:20} {own.replicas.min} to {own.replicas.max} engines of {own.model}, not started now")
    for place in fleet.discovery.shown() if fleet.discovery is not None else ():
        print(f"  {place['place']}: {place['problem'] or str(len(place['replicas'])) + ' replicas'}")
    kept = f"{found.cache.megabytes:g} MB for {found.cache.ttl_seconds:g} s" if found.cache.megabytes else "off"
    print(f"  cache of answers: {kept}")
    for one in fleet.upstreams:
        state = one.problem or f"well, serves {', '.join(one.models) or 'nothing that it tells'}"
        print(f"  {one.name:20} {one.own.engine:12} {one.own.url}  {state}")


@gateway.command("explain", epilog=_EXPLAIN_EXAMPLES)
def explain(
    request_id: Annotated[str, typer.Argument(metavar="ID", help="The answer's X-Request-Id.")],
    *,
    url: Annotated[str, typer.Option("--url", metavar="URL", help="The gateway.")] = "http://127.0.0.1:8080",
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 (read by main)
) -> None:
    """Say why a request went where it went. An administrator's key is taken from TIDEMILL_API_KEY."""
    found = _asked(f"{url.rstrip('/')}/admin/decisions/{request_id}")
    if json:
        print(jsonlib.dumps(found))
        return
    print(
        f"{found['id']}: {found['path']}, model {found['model'] or '(none named)'}, about "
        f"{found['estimated_prompt_tokens']} prompt tokens: {found['outcome']}"
    )
    for number, attempt in enumerate(found["attempts"], 1):
        print(f"  attempt {number}: {attempt['replica']}, {attempt['reason']}: {attempt.get('outcome', 'under way')}")
        for name, score in attempt["scores"].items():
            parts = ", ".join(f"{part} {value:.4g}" for part, value in score.items() if part != "total")
            print(f"    {name:20} {score['total']:.4g}" + (f" = {parts}" if parts else ""))
        if left_out := attempt.get("scores_left_out"):
            print(f"    and {left_out} more, none of them better")
        for name, reason in attempt["not"].items():
            print(f"    {name:20} not: {reason}")


@gateway.command("restart", epilog=_RESTART_EXAMPLES)
def restart(
    url: Annotated[str, typer.Argument(metavar="URL", help="The gateway.")] = "http://127.0.0.1:8080",
    *,
    engine: Annotated[str | None, typer.Option("--engine", metavar="NAME", help="Those of one group only.")] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Return when all have been exchanged.")] = True,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=1, help="How long to wait for that.")
    ] = 3600.0,
    debug: DebugOption = False,  # noqa: ARG001 (read by main)
) -> None:
    """Exchange the engines that a gateway starts itself, one by one, cutting no answer. An administrator's key is taken
    from TIDEMILL_API_KEY."""
    from tidemill.cli.gateway_restart import exchanged

    root = url.rstrip("/")
    before = _asked(f"{root}/admin/engines")
    query = "" if engine is None else "?" + urlencode({"engine": engine})
    names = _asked(f"{root}/admin/engines/restart{query}", method="POST")["engines"]
    if not names:
        print("this gateway starts no engines")
    elif wait:
        exchanged(lambda: _asked(f"{root}/admin/engines"), before, names, timeout=timeout, say=print)
    else:
        print(f"{', '.join(names)}: being exchanged; {root}/admin/engines says how far it is")


def _asked(url: str, method: str = "GET") -> dict[str, Any]:
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"url must be like http://127.0.0.1:8080, not {url!r}", param="url")
    key = os.environ.get("TIDEMILL_API_KEY")
    request = Request(url, headers={"Authorization": f"Bearer {key}"} if key else {}, method=method)
    try:
        with urlopen(request, timeout=10) as answer:
            found: dict[str, Any] = jsonlib.load(answer)
            return found
    except HTTPError as error:
        try:
            said = jsonlib.load(error)["error"]["message"]
        except (ValueError, KeyError, TypeError):
            said = str(error)
        raise TidemillError(said) from error
    except (URLError, OSError) as error:
        raise ConfigError(f"{url}: {getattr(error, 'reason', error)}", param="url") from error

"""Write the pages that are made from the code: docs/{cli,settings,models}.md, docs/architecture.svg.

python scripts/generate_docs.py          write them
python scripts/generate_docs.py --check  exit with 1 and name the first page that is not as it would be written
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(Path(__file__).parent)]

import typer  # noqa: E402
from draw_architecture import draw  # noqa: E402
from models_page import models_page  # noqa: E402

from tidemill.cli.main import make_app  # noqa: E402
from tidemill.core.config import EngineConfig, ExecutorConfig, ModelConfig, SchedulerConfig, ServerConfig  # noqa: E402
from tidemill.core.sampling import SamplingOptions  # noqa: E402
from tidemill.core.settings import Setting, settings_of  # noqa: E402

OWNERS = (ModelConfig, ExecutorConfig, SchedulerConfig, EngineConfig, ServerConfig)
VALUES: dict[type, str] = {str: "TEXT", int: "N", float: "X"}
NOTE = "<!-- Written by scripts/generate_docs.py (make docs). Change the texts in the code. -->"


def cli_page() -> str:
    """docs/cli.md."""
    return "\n".join(_cli_lines()) + "\n"


def _cli_lines() -> Iterator[str]:
    yield "# Command line"
    yield NOTE
    yield ""
    yield "Sizes take units: `512MiB`, `8GiB`. Mistakes are one line on standard error and exit code 2; a failed answer"
    yield "or a defect is 1, Ctrl-C 130. `--debug` shows the traceback of an error."
    for name, command in _commands("", typer.main.get_command(make_app())):
        yield ""
        yield f"## tidemill {name}"
        yield ""
        yield " ".join((command.help or "").split())
        yield ""
        yield "| option | meaning |"
        yield "|---|---|"
        for option in command.params:
            yield f"| {_spellings(option)} | {_cell(_meaning(option))} |"


def _commands(prefix: str, group: Any) -> Iterator[tuple[str, Any]]:
    """Every command with the words that call it; those of a group come in its place."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(f"{prefix}{name} ", command)
        else:
            yield f"{prefix}{name}", command


def _spellings(option: Any) -> str:
    """Every way to write an option, with a placeholder for its value."""
    if option.param_type_name == "argument":
        return f"`{option.metavar}`"
    known = settings_of(*OWNERS, SamplingOptions).get(option.name)
    value = "" if option.is_flag else option.metavar or VALUES[known.element if known else str]
    value = value.replace("|", "\\|")
    flags = (*option.opts, *option.secondary_opts)
    return ", ".join(f"`{flag} {value}`" if value else f"`{flag}`" for flag in flags)


def _meaning(option: Any) -> str:
    shown = option.param_type_name == "argument" and option.default
    return f"{option.help} [default: {option.default}]" if shown else option.help


def settings_page() -> str:
    """docs/settings.md."""
    return "\n".join(_settings_lines()) + "\n"


def _settings_lines() -> Iterator[str]:
    yield "# Settings"
    yield NOTE
    yield ""
    yield "The same names on the command line (`--max-running 8`) and in Python (`LLM(model, max_running=8)`). A name"
    yield "that does not exist and a value out of range are refused before anything is loaded."
    for owner, title in (
        (ModelConfig, "Model"),
        (ExecutorConfig, "Executor"),
        (SchedulerConfig, "Scheduler"),
        (EngineConfig, "Engine"),
        (ServerConfig, "Server (`tidemill serve` only)"),
    ):
        yield ""
        yield f"## {title}"
        yield ""
        yield "| setting | values | default | meaning |"
        yield "|---|---|---|---|"
        for setting in settings_of(owner).values():
            yield f"| `{setting.name}` | {_values(setting)} | {_default(setting)} | {_cell(setting.doc)} |"
    yield ""
    yield "## Environment"
    yield ""
    yield "| variable | meaning |"
    yield "|---|---|"
    yield "| `TIDEMILL_API_KEY` | API keys of `tidemill serve`, separated by blanks; no process list shows them |"
    yield "| `TIDEMILL_KEYS_FILE` | `keys_file`, of `tidemill serve` and `tidemill keys` |"
    yield "| `TIDEMILL_ISA` | kernel variant where `isa` is `auto` |"
    yield "| `HF_HOME`, `HF_ENDPOINT`, `HF_TOKEN`, `HF_HUB_OFFLINE` | see [where models come from](models-where.md) |"
    yield "| `XDG_CONFIG_HOME` | the configuration folder, with `tidemill/models.toml`; default: `~/.config` |"


def _values(setting: Setting) -> str:
    if setting.choices:
        return ", ".join(f"`{choice}`" for choice in setting.choices)
    named = {int: "whole number", float: "number", str: "text", bool: "on, off", tuple: "texts"}[setting.kind]
    return f"{named} {setting.range_text}".strip()


def _default(setting: Setting) -> str:
    if setting.name == "path":
        return "-"
    if setting.kind is bool:
        return "on" if setting.default else "off"
    return "-" if setting.default in (None, ()) else f"`{setting.default}`"


def _cell(text: Any) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")


PAGES: dict[str, Callable[[], str]] = {
    "docs/cli.md": cli_page,
    "docs/settings.md": settings_page,
    "docs/models.md": lambda: models_page(NOTE),
    "docs/architecture.svg": draw,
}


def main(arguments: list[str]) -> int:
    """Write or check the pages."""
    for name, page in PAGES.items():
        file = ROOT / name
        if "--check" not in arguments:
            file.write_text(page())
        elif not file.exists() or file.read_text() != page():
            print(f"{name} is not as the code says; run `make docs`", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

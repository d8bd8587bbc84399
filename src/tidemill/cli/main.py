"""The entry point, and the one place where errors become a line and an exit code.

0    done                           2    the caller or the machine has to change something (SetupError, usage)
1    a defect, or a failed answer   130  Ctrl-C
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from tidemill.cli.commands import add_commands
from tidemill.core.errors import InvalidRequest, SetupError, TidemillError
from tidemill.core.version import __version__

__all__ = ["main", "make_app", "run"]


def make_app(arguments: Sequence[str] = ()) -> typer.Typer:
    """The command line. Of the commands only the one that the arguments call is imported, all if they call none."""
    app = typer.Typer(
        name="tidemill",
        help="Run large language models on the machine you have: serve, chat, generate, plan, bench.",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    called = next((word for word in arguments if not word.startswith("-")), "")
    add_commands(app, only=called if arguments else None)
    return app


def _print_version(on: bool) -> None:
    if on:
        typer.echo(f"tidemill {__version__}")
        raise typer.Exit


def _root(
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version)
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line and exit the process."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; an error becomes one line on standard error."""
    try:
        words = list(arguments) or ["--help"]
        code = make_app(words)(words, prog_name="tidemill", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except Exception as error:
        if "--debug" in arguments and not _is_usage(error):
            raise
        return _report(error)
    except KeyboardInterrupt:
        return 130


def _report(error: Exception) -> int:
    """Say what is wrong in one line; the exit code."""
    if isinstance(error, typer.Abort):  # typer's own form of Ctrl-C
        return 130
    if _is_usage(error):
        message = error.format_message()  # type: ignore[attr-defined]
        _line(f"{message} Try 'tidemill --help'." if message else "Try 'tidemill --help'.")
        return 2
    if isinstance(error, TidemillError):
        _line(error.message)
        return 2 if isinstance(error, SetupError | InvalidRequest) else 1
    _line(f"this is a defect: {type(error).__name__}: {error} (add --debug to see where)")
    return 1


def _is_usage(error: Exception) -> bool:
    """True for typer's own complaints about the command line; its exception classes differ between versions."""
    return hasattr(error, "format_message") and hasattr(error, "exit_code")


def _line(message: str) -> None:
    print(f"tidemill: error: {' '.join(message.split())}", file=sys.stderr)

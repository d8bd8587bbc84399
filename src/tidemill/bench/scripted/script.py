"""What a scripted server does: a list of answers, each a list of steps with a delay before each.

In a file:

    {"model": "scripted",
     "answers": [
       {"delay": 0.2,                                  before the status and the headers
        "steps": [{"role": true},
                  {"after": 0.05, "tokens": 4, "channel": "reasoning"},
                  {"after": 0.01, "tokens": 1, "times": 20},
                  {"after": 2.0, "comment": "keep-alive"},
                  {"tokens": 1}]},
       {"status": 429, "message": "full", "headers": {"retry-after": "1"}},
       {"steps": [{"tokens": 1, "times": 3}, {"disconnect": true}]}]}

Request k gets answer k modulo their number. Delays count from the step before, on absolute deadlines, so that they do
not drift. Unless a step ends the answer, it ends with a finish reason, the usage and ``[DONE]``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Literal

from tidemill.core.errors import ConfigError

__all__ = ["Channel", "Script", "ScriptedAnswer", "Step", "read_script"]

Channel = Literal["content", "reasoning", "tool", "refusal"]
_CHANNELS: Final = ("content", "reasoning", "tool", "refusal")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One event, and what comes before it. Exactly one of the fields from ``tokens`` to ``end`` says what it is."""

    after: float = 0.0
    """Seconds after the step before; of the first one, after the headers."""
    tokens: int = 0
    """A chunk with so many tokens."""
    role: bool = False
    """A chunk with the role alone."""
    empty: bool = False
    """A chunk with empty text."""
    comment: str = ""
    """A comment of the event stream, such as a keep-alive."""
    finish: str = ""
    """A chunk with this finish reason and no text."""
    usage: bool = False
    """A chunk with the usage and no choices."""
    done: bool = False
    """The end marker; the answer ends."""
    error: str = ""
    """An error event with this message; the answer ends without an end marker."""
    disconnect: bool = False
    """The connection is cut; the answer ends."""
    raw: str = ""
    """Bytes as they are, between events."""
    wait: bool = False
    """Nothing but the delay."""
    end: bool = False
    """The body ends properly, whatever is missing in it."""
    channel: Channel = "content"
    """Of ``tokens``."""
    times: int = 1
    """How often the step is done, delay included; 0: until there are as many tokens as were asked for."""
    counted: bool = False
    """The chunk of ``tokens`` says how many they are, by log-probabilities."""

    @property
    def ends(self) -> bool:
        """True if nothing comes after it."""
        return self.done or bool(self.error) or self.disconnect or self.end


_KINDS: Final = (
    "tokens",
    "role",
    "empty",
    "comment",
    "finish",
    "usage",
    "done",
    "error",
    "disconnect",
    "raw",
    "wait",
    "end",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedAnswer:
    """What one request gets."""

    steps: tuple[Step, ...] = (Step(tokens=1, times=0),)
    status: int = 200
    message: str = "the script says so"
    """Of a status other than 200, whose steps are not done."""
    headers: Mapping[str, str] = field(default_factory=dict)
    delay: float = 0.0
    """Seconds before status and headers."""
    cached_tokens: int | None = None
    """Of the prompt, as the usage tells; None: it does not."""
    extra_tokens: int = 0
    """Counted in the usage and in no chunk, as an end token is."""
    usage: bool = True
    """Send the usage before the end marker, where the script does not say when."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """Answers in turn."""

    answers: tuple[ScriptedAnswer, ...] = (ScriptedAnswer(),)
    model: str = "scripted"


def read_script(path: Path) -> Script:
    """Read a file. Raises ConfigError naming answer, step and field."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}", param="script") from error
    except ValueError as error:
        raise ConfigError(f"{path}: is not JSON: {error}", param="script") from error
    table = _table(value, Script, f"{path}")
    answers = table.get("answers", [{}])
    if not isinstance(answers, list) or not answers:
        raise ConfigError(f"{path}: answers must be a list that is not empty", param="script")
    made = tuple(_answer(answer, f"{path}: answer {number}") for number, answer in enumerate(answers))
    return Script(answers=made, model=str(table.get("model", "scripted")))


def _answer(value: Any, where: str) -> ScriptedAnswer:
    table = _table(value, ScriptedAnswer, where)
    if "steps" in table:
        steps = table["steps"]
        if not isinstance(steps, list):
            raise ConfigError(f"{where}: steps must be a list", param="script")
        table["steps"] = tuple(_step(step, f"{where}, step {number}") for number, step in enumerate(steps))
    if not isinstance(headers := table.get("headers", {}), dict):
        raise ConfigError(f"{where}: headers must be a table of names and texts", param="script")
    table["headers"] = {str(name): str(text) for name, text in headers.items()}
    status = table.get("status", 200)
    if status != 200 and not 400 <= status <= 599:
        raise ConfigError(f"{where}: status must be 200, or 400 to 599, not {status}", param="script")
    return ScriptedAnswer(**table)


def _step(value: Any, where: str) -> Step:
    table = _table(value, Step, where)
    kinds = [name for name in _KINDS if table.get(name)]
    if len(kinds) != 1:
        raise ConfigError(
            f"{where}: must have exactly one of {', '.join(_KINDS)}, not {kinds or 'none'}", param="script"
        )
    if table.get("channel", "content") not in _CHANNELS:
        raise ConfigError(f"{where}: channel must be one of {', '.join(_CHANNELS)}", param="script")
    if table.get("times") == 0 and not table.get("tokens"):
        raise ConfigError(f"{where}: times 0 is for tokens alone", param="script")
    return Step(**table)


def _table(value: Any, kind: type[Any], where: str) -> dict[str, Any]:
    """A table whose keys are the fields of a class and whose numbers are not negative."""
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: must be a table, not {type(value).__name__}", param="script")
    known = {item.name: item for item in fields(kind)}
    for name, given in value.items():
        if name not in known:
            raise ConfigError(f"{where}: there is no {name}; fields are {', '.join(known)}", param="script")
        _check(name, given, str(known[name].type), where)
    return dict(value)


def _check(name: str, given: Any, kind: str, where: str) -> None:
    """The value has the field's type, where that is a plain one."""
    kinds: dict[str, type | tuple[type, ...]] = {"float": (int, float), "int": int, "bool": bool, "str": str}
    wanted = kinds.get(kind.removesuffix(" | None"))
    if wanted is None or (given is None and kind.endswith("| None")):
        return
    if not isinstance(given, wanted) or (isinstance(given, bool) and wanted is not bool):
        raise ConfigError(f"{where}: {name} must be of type {kind}, not {given!r}", param="script")
    if isinstance(given, int | float) and not 0 <= given < math.inf:
        raise ConfigError(f"{where}: {name} must not be negative, and is {given!r}", param="script")

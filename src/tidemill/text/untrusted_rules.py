"""What the rules in a tokenizer.json could do to the process that builds them; they are not trusted.

Twenty ``Replace`` rules that put ``aa`` for ``a`` make a million characters of one, and forty fill any memory. A
``Precompiled`` map begins with the size of a table, for which the tokenizers library takes memory before it looks
whether the table is there.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from tidemill.core.errors import ModelLoadError

__all__ = ["check_rules"]

_MAX_GROWTH = 64
_PARTS = ("normalizers", "decoders")


class _Rules(msgspec.Struct):
    normalizer: Any = None
    decoder: Any = None


def check_rules(content: bytes, *, where: str) -> None:
    """Raises ModelLoadError for a normalizer or decoder of a tokenizer.json that could make a text more than 64 times
    as long (used ones put a character or two for one), and for a ``Precompiled`` map that is cut off."""
    try:
        rules = msgspec.json.decode(content, type=_Rules)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ModelLoadError(f"{where}: tokenizer.json cannot be read: {error}") from error
    for rule in (rules.normalizer, rules.decoder):
        steps = [step for step in _steps(rule) if isinstance(step, Mapping)]
        if math.prod(map(_growth, steps)) > _MAX_GROWTH:
            raise ModelLoadError(f"{where}: the tokenizer's Replace rules make a text over {_MAX_GROWTH} times as long")
        if not all(map(_is_whole, steps)):
            raise ModelLoadError(f"{where}: the tokenizer's precompiled_charsmap is cut off")


def _steps(rule: Any) -> Iterator[Any]:
    """The rules that a rule consists of, or itself."""
    inner = next((rule[part] for part in _PARTS if part in rule), None) if isinstance(rule, Mapping) else None
    if not isinstance(inner, list):
        yield rule
    else:
        for step in inner:
            yield from _steps(step)


def _growth(rule: Mapping[str, Any]) -> float:
    match rule:
        case {"type": "Replace", "pattern": {"String": str(pattern)}, "content": str(content)} if pattern:
            return max(1.0, len(content) / len(pattern))
        case {"type": "Replace", "content": str(content)}:
            return 1.0 + len(content)
        case _:
            return 1.0


def _is_whole(rule: Mapping[str, Any]) -> bool:
    """True unless it is a map whose table is longer than the map. A map is the table's size (u32), the table, texts."""
    if rule.get("type") != "Precompiled" or not isinstance(rule.get("precompiled_charsmap"), str):
        return True
    try:
        content = base64.b64decode(rule["precompiled_charsmap"])
    except ValueError:
        return False
    return 4 <= int.from_bytes(content[:4], "little") + 4 <= len(content)

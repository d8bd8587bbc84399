"""The table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidemill.bench.tables import table

__all__ = ["text"]

_HEAD = ["work", "peer", "unit", "ours", "peer's", "ratio", "x llama.cpp", "floor", "goal", "met", "of roof"]
_FORMS = {"ratio": ".2f", "roof_share": ".0%", "ours": ".3g"}


def text(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows under each other, and below them why figures are missing."""
    lines = [_HEAD[:]]
    for row in rows:
        llama = row.get("peers", {}).get("llama.cpp", {}).get("ratio")
        lines.append(
            [
                row["work"], row["peer"] or "-", row["unit"], _shown(row["ours"], ".4g"),
                _shown(row["peer_value"], ".4g"), _shown(row["ratio"], ".2f"), _shown(llama, ".2f"),
                _target(row, "floor"), _target(row, "goal"), _met(row), _shown(row["roof_share"], ".0%"),
            ]
        )  # fmt: skip
    return "\n".join([table(lines[0], lines[1:], left=3), *_reasons(rows)])


def _shown(value: Any, form: str) -> str:
    return "-" if value is None else format(value, form)


def _target(row: Mapping[str, Any], name: str) -> str:
    kind = row.get(f"{name}_of", "ratio")
    if row[name] is None:
        return "-"
    return _shown(row[name], _FORMS[kind]) + ("x" if kind == "ratio" else "")


def _met(row: Mapping[str, Any]) -> str:
    floor, goal = row.get("floor_met"), row.get("goal_met")
    if goal and floor is not False:
        return "goal"
    if floor is None:
        return "-"
    return "floor" if floor else "no"


def _reasons(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each reason, with the works that it left without a figure."""
    works: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for name, reason in row.get("reasons", {}).items():
            works.setdefault((name, reason), []).append(row["work"])
    return [f"no figure of {name} for {', '.join(dict.fromkeys(of))}: {why}" for (name, why), of in works.items()]

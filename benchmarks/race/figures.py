"""From the figures of turns to a row of the table: ratios, and whether floor and goal are met."""

from __future__ import annotations

from typing import Any

from benchmarks.race.rows import Wanted
from benchmarks.race.turns import Race

__all__ = ["plain_row", "race_row"]

TableRow = dict[str, Any]


def race_row(
    work: str, race: Race, wanted: Wanted, *, unit: str = "tok/s", figure: str = "rate", lower: bool = False
) -> TableRow:
    """The row of one figure of a race. Its ratio says how many times as good we are as the fastest peer; ``lower``:
    smaller figures are better."""
    ours = race.median(figure)
    peers = {engine: value for engine in race.peers if (value := race.median(figure, engine)) is not None}
    ratios = {} if ours is None else {name: _times(ours, value, lower) for name, value in peers.items()}
    best = min(ratios, key=lambda name: ratios[name], default=None)
    if best is None and peers:
        best = (min if lower else max)(peers, key=lambda name: peers[name])
    spread = [turn[figure] for turn in race.ours if turn.get(figure) is not None]
    return plain_row(
        work,
        unit,
        ours,
        wanted,
        peer=best,
        peer_value=peers.get(best) if best else None,
        ratio=ratios.get(best) if best else None,
        roof_share=race.median("roof_share"),
        turns=len(race.ours),
        spread=[min(spread), max(spread)] if spread else None,
        peers={
            name: {"settings": race.settings.get(name), "value": value, "ratio": ratios.get(name)}
            for name, value in peers.items()
        },
        tried=race.tried,
        reasons=race.reasons,
        **({"better": "lower"} if lower else {}),
    )


def plain_row(work: str, unit: str, ours: float | None, wanted: Wanted, **others: Any) -> TableRow:
    """A row with the keys that all rows have, rounded, and with ``floor_met`` and ``goal_met``: None where there is
    nothing to compare."""
    row: TableRow = {
        "work": work, "unit": unit, "ours": ours, "peer": None, "peer_value": None, "ratio": None,
        "floor": wanted.floor, "goal": wanted.goal, "roof_share": None, "floor_of": wanted.floor_of,
        "goal_of": wanted.goal_of, "against": wanted.against, **others,
    }  # fmt: skip
    row["floor_met"] = _met(row, wanted.floor, wanted.floor_of, wanted)
    if row["floor_met"] and wanted.against and wanted.floor_of == "ratio" and row["ratio"] is not None:
        row["floor_met"] = row["ratio"] >= 1.0
    row["goal_met"] = _met(row, wanted.goal, wanted.goal_of, wanted)
    return _rounded(row)


def _times(ours: float, peer: float, lower: bool) -> float:
    good, bad = (peer, ours) if lower else (ours, peer)
    return good / bad if bad else float("inf")


def _met(row: TableRow, limit: float | None, figure: str, wanted: Wanted) -> bool | None:
    value = row[figure]
    if figure == "ratio" and wanted.against:
        value = row.get("peers", {}).get(wanted.against, {}).get("ratio")
    if limit is None or value is None:
        return None
    return value <= limit if wanted.lower else value >= limit  # type: ignore[no-any-return]


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list) else value

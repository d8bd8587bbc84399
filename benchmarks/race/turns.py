"""Taking turns: each peer's settings once, the fastest then alternately with ours, and medians."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.race.side import Ask, Contender, Figures, Side, SideFailed

__all__ = ["Race", "Stable", "alternate"]

OURS = "ours"
_NEAR = 0.8
"""An engine below this share of the fastest one's rate when tried takes no turns: it cannot be the fastest."""


class Stable:
    """Sides that are running, by name: started when they are first asked, kept for the next row of the same model."""

    def __init__(self) -> None:
        self._sides: dict[str, Side] = {}

    def get(self, name: str, start: Callable[[], Side]) -> Side:
        """The side of this name, started now if it is not running. Raises SideFailed."""
        if name not in self._sides:
            self._sides[name] = start()
        return self._sides[name]

    def drop(self, name: str) -> None:
        """End a side, if it is running."""
        if side := self._sides.pop(name, None):
            side.close()

    def close(self) -> None:
        """End all of them."""
        for name in list(self._sides):
            self.drop(name)


@dataclass(slots=True, kw_only=True)
class Race:
    """What came out of one row's turns."""

    ours: list[Figures] = field(default_factory=list)
    peers: dict[str, list[Figures]] = field(default_factory=dict)
    """Of each engine's fastest settings."""
    settings: dict[str, str] = field(default_factory=dict)
    """The name of these, by engine."""
    tried: dict[str, float] = field(default_factory=dict)
    """Rates of the first try, by name and settings, of engines that took no turns too."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Why there is no figure, by name and settings; "ours" is us."""

    def median(self, figure: str, engine: str | None = None) -> float | None:
        """The median of a figure over the turns, ours or an engine's; None where there is none."""
        turns = self.ours if engine is None else self.peers.get(engine, [])
        values = [turn[figure] for turn in turns if turn.get(figure) is not None]
        return statistics.median(values) if values else None


def alternate(
    ask: Ask,
    ours: Callable[[], Side],
    contenders: Sequence[Contender],
    *,
    stable: Stable,
    turns: int,
    always: str | None = None,
    before: Callable[[Side, int], Mapping[str, Any]] | None = None,
) -> Race:
    """Try every contender once, then take ``turns`` turns: ours, and the fastest settings of each engine that is near
    the fastest of all, or is the one that ``always`` takes turns.

    ``before(ours, turn)``: what is asked of us in a turn beside the work. A side that fails is left out from then on,
    with its reason; if that is ours, the turns end.
    """
    race = Race()
    fastest = _try_all(race, ask, contenders, stable)
    limit = _NEAR * max((race.tried[one.name] for one in fastest.values()), default=0.0)
    for engine, one in list(fastest.items()):
        if engine != always and race.tried[one.name] < limit:
            stable.drop(one.name)
            del fastest[engine]
    for turn in range(turns):
        try:
            side = stable.get(OURS, ours)
            more = before(side, turn) if before else {}
            race.ours.append(side.turn({**ask, **more, "turn": turn}))
        except SideFailed as error:
            race.reasons[OURS] = str(error)
            stable.drop(OURS)
            break
        for engine, contender in list(fastest.items()):
            try:
                figures = stable.get(contender.name, contender.start).turn({**ask, "turn": turn})
                race.peers.setdefault(engine, []).append(figures)
            except SideFailed as error:
                race.reasons[contender.name] = f"turn {turn + 1}: {error}"
                stable.drop(contender.name)
                del fastest[engine]
                race.peers.pop(engine, None)
    race.settings = {engine: contender.settings for engine, contender in fastest.items()}
    return race


def _try_all(race: Race, ask: Ask, contenders: Sequence[Contender], stable: Stable) -> dict[str, Contender]:
    """Each engine's fastest contender; the others' processes end."""
    fastest: dict[str, Contender] = {}
    for one in contenders:
        try:
            race.tried[one.name] = stable.get(one.name, one.start).turn({**ask, "turn": -1})["rate"]
        except SideFailed as error:
            race.reasons[one.name] = str(error)
            stable.drop(one.name)
            continue
        best = fastest.get(one.engine)
        if best is None or race.tried[one.name] > race.tried[best.name]:
            fastest[one.engine] = one
            loser = best
        else:
            loser = one
        if loser is not None:
            stable.drop(loser.name)
    return fastest

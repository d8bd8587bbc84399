"""A run as a report shows it: read back from its folder, or just made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidemill.bench.figures.slo import Slo, parse_slo
from tidemill.bench.load.record import RequestRecord
from tidemill.bench.results import read_records, read_run, read_states
from tidemill.bench.server_state import ServerState
from tidemill.core.errors import SetupError

__all__ = ["ShownRun"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRun:
    """One run."""

    name: str
    records: Sequence[RequestRecord]
    states: Sequence[ServerState]
    run: Mapping[str, Any]
    """As in ``run.json``: conditions, load, prompts, slo, figures."""

    @classmethod
    def read(cls, folder: Path) -> ShownRun:
        """From where ``write_run`` put it. Raises SetupError naming what is missing."""
        if not folder.is_dir():
            raise SetupError(f"{folder}: is no folder of a run; make one with tidemill bench run --out {folder}")
        run = read_run(folder)
        return cls(name=folder.name or str(folder), records=read_records(folder), states=read_states(folder), run=run)

    @property
    def figures(self) -> Mapping[str, Any]:
        """All figures."""
        found: Mapping[str, Any] = self.run["figures"]
        return found

    @property
    def slo(self) -> Slo | None:
        """Its objectives."""
        text = self.run.get("slo")
        return parse_slo(text) if isinstance(text, str) and text else None

    @property
    def end(self) -> float:
        """Seconds from its start to its last sign of life."""
        times = [record.ended if record.ended is not None else record.due for record in self.records]
        return max([*times, *(state.at for state in self.states)], default=0.0)

"""``tidemill bench step``: prefill and decoding of one model, with the roof of this machine in the same run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tidemill.bench.host import HostTime, measure_host
from tidemill.bench.rig import Rig
from tidemill.bench.tables import profile_rows, profile_table, roof_row, table, work_row, work_table
from tidemill.bench.work import Work
from tidemill.core.config import EngineConfig

__all__ = ["StepBench", "StepReport", "host_row", "host_table"]

_ROOF_SECONDS = 1.5
_LATER = 64
"""Steps a stream may take beyond its context before it begins anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBench:
    """What to measure."""

    works: Sequence[Work]
    repeats: int = 15
    seconds: float = 8.0
    """For one work; five repeats are made however long they take."""
    profile: bool = False
    host: Sequence[int] = ()
    """Numbers of streams to measure the host's time at."""

    def run(self, config: EngineConfig) -> StepReport:
        """Measure one model."""
        rig = Rig(config, self.works, later=_LATER)
        try:
            roofs = rig.roofs(min(_ROOF_SECONDS, max(self.seconds, 0.05)))
            timings = [
                rig.measure(work, repeats=self.repeats, seconds=self.seconds, profile=self.profile)
                for work in self.works
            ]
            values = {
                "bench": "step",
                "model": rig.name,
                "format": rig.format,
                "file_bytes": rig.file_bytes,
                "executor": rig.executor.description,
                "roof": [roof_row(roof) for roof in roofs],
                "rows": [work_row(timing, roofs[-1], weights=rig.format) for timing in timings],
                "profiles": {
                    timing.work.name: profile_rows(timing.profile, roofs[-1]) for timing in timings if timing.profile
                },
            }
        finally:
            rig.close()
        host = measure_host(config, self.host, most=rig.max_position) if self.host else []
        return StepReport(values=values | {"host": [host_row(one) for one in host]})


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """The figures, in plain types."""

    values: dict[str, Any]

    def lines(self) -> Iterator[str]:
        """As text."""
        values = self.values
        yield f"{values['model']}, mostly {values['format']}, {values['file_bytes'] / 1e6:.1f} MB of weights"
        yield values["executor"]
        for roof in values["roof"]:
            threads = f"{roof['threads']} thread{'s' if roof['threads'] > 1 else ''}"
            yield (
                f"roof, {threads}: reads {roof['read_gb_s']:.1f} GB/s, "
                f"{roof['float_instruction']} {roof['float_gop_s']:.0f} GOP/s, "
                f"{roof['integer_instruction']} {roof['integer_gop_s']:.0f} GOP/s"
            )
        yield ""
        yield work_table(values["rows"])
        for name, rows in values["profiles"].items():
            yield f"\n{name}, one step by kind of work:"
            yield profile_table(rows)
        if values["host"]:
            yield "\ntime outside the executor in a decode step of the engine, ms:"
            yield host_table(values["host"])


def host_row(one: HostTime) -> dict[str, Any]:
    """In milliseconds."""
    return {
        "streams": one.streams,
        "step_ms": round(1e3 * one.step, 3),
        "host_ms": round(1e3 * one.host, 4),
        "share": round(one.share, 4),
        "parts_ms": {part: round(1e3 * seconds, 4) for part, seconds in one.parts.items()},
    }


def host_table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows of ``host_row``."""
    parts = list(dict.fromkeys(part for row in rows for part in row["parts_ms"]))
    return table(
        ["streams", "step", "host", "share", *parts],
        [
            [
                str(row["streams"]),
                f"{row['step_ms']:.2f}",
                f"{row['host_ms']:.3f}",
                f"{row['share']:.1%}",
                *(f"{row['parts_ms'].get(part, 0.0):.3f}" for part in parts),
            ]
            for row in rows
        ],
    )

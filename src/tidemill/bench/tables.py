"""Measured steps as text and as plain values for JSON. Both have the same figures: the text is made from the values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidemill.bench.rig import Timing
from tidemill.core.step import KindTime
from tidemill.executors.roof import Roof

__all__ = ["profile_rows", "profile_table", "roof_row", "table", "work_row", "work_table"]

Row = Mapping[str, Any]


def roof_row(roof: Roof) -> dict[str, Any]:
    """A roof in GB/s and GOP/s."""
    return {
        "threads": roof.threads,
        "read_gb_s": round(roof.read / 1e9, 2),
        "float_gop_s": round(roof.floats / 1e9, 1),
        "integer_gop_s": round(roof.integers / 1e9, 1),
        "float_instruction": roof.float_instruction,
        "integer_instruction": roof.integer_instruction,
    }


def work_row(timing: Timing, roof: Roof, *, weights: str) -> dict[str, Any]:
    """One shape of step: its speed, its spread, and what of the read bandwidth it uses (bytes as in the file)."""
    return {
        "work": timing.work.name,
        "format": weights,
        "tokens_per_second": round(timing.rate, 2),
        "ms": round(1e3 * timing.median, 3),
        "ms_min": round(1e3 * min(timing.seconds), 3),
        "ms_max": round(1e3 * max(timing.seconds), 3),
        "repeats": len(timing.seconds),
        "gb_s": round(timing.bytes / timing.median / 1e9, 2),
        "gop_s": round(timing.cost.flops / timing.median / 1e9, 1),
        "read_share": round(timing.bytes / timing.median / roof.read, 3),
    }


def profile_rows(profile: Sequence[KindTime], roof: Roof) -> list[dict[str, Any]]:
    """One row per kind, the longest first, and their sum: ``share`` of the step's time, ``roof_share`` of the
    hardware's limit; rates are those while threads work, of the sum those over all of the time."""
    total = sum(part.seconds for part in profile)
    rows = [
        _profile_row(part, total, roof.share([part]))
        for part in sorted(profile, key=lambda part: part.seconds, reverse=True)
    ]
    whole = KindTime(
        kind="whole step",
        calls=sum(part.calls for part in profile),
        seconds=total,
        bytes=sum(part.bytes for part in profile),
        operations=sum(part.operations for part in profile),
    )
    return [*rows, _profile_row(whole, total, roof.share(profile))]


def _profile_row(part: KindTime, total: float, roof_share: float) -> dict[str, Any]:
    def per_second(amount: int) -> float:
        return round(amount / part.seconds / 1e9, 2) if part.seconds else 0.0

    return {
        "kind": part.kind,
        "calls": part.calls,
        "ms": round(1e3 * part.seconds, 4),
        "share": round(part.seconds / total, 4) if total else 0.0,
        "gb_s": per_second(part.bytes),
        "gop_s": per_second(part.operations),
        "bytes": part.bytes,
        "operations": part.operations,
        "roof_share": round(roof_share, 3),
    }


def work_table(rows: Sequence[Row]) -> str:
    """The rows of ``work_row``."""
    return table(
        ["work", "format", "tok/s", "ms", "min", "max", "GB/s", "GOP/s", "of read roof"],
        [
            [
                row["work"],
                row["format"],
                f"{row['tokens_per_second']:.1f}",
                f"{row['ms']:.2f}",
                f"{row['ms_min']:.2f}",
                f"{row['ms_max']:.2f}",
                f"{row['gb_s']:.1f}",
                f"{row['gop_s']:.0f}",
                f"{row['read_share']:.0%}",
            ]
            for row in rows
        ],
    )


def profile_table(rows: Sequence[Row]) -> str:
    """The rows of ``profile_rows``."""
    return table(
        ["kind", "calls", "ms", "share", "GB/s", "GOP/s", "of roof"],
        [
            [
                row["kind"],
                str(row["calls"] or "-"),
                f"{row['ms']:.3f}",
                f"{row['share']:.1%}",
                f"{row['gb_s']:.1f}" if row["bytes"] else "-",
                f"{row['gop_s']:.0f}" if row["operations"] else "-",
                f"{row['roof_share']:.0%}" if row["roof_share"] else "-",
            ]
            for row in rows
        ],
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Columns as wide as they need to be; the first ``left`` flush left."""
    widths = [max(len(line[column]) for line in (head, *rows)) for column in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        return "  ".join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ).rstrip()

    return "\n".join(line(cells) for cells in (head, *rows))

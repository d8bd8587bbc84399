"""The results of a contest as lines, Markdown and HTML; all are made from the values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tidemill.bench.peers.installed import OURS
from tidemill.bench.report.page import flat, html_table, page
from tidemill.bench.svg import COLOURS
from tidemill.bench.sweep.plot import sweep_svg
from tidemill.bench.tables import table

__all__ = ["contest_html", "contest_lines", "contest_markdown"]

_ROUND_HEAD: Final = (
    "engine", "settings", "tok/s", "ours / it", "95 % sure", "TTFT p50 ms", "p99", "ITL mean ms", "p95", "failed",
)  # fmt: skip
_RATE_HEAD: Final = ("engine", "requests/s", "ours / it", "in SLO", "tok/s", "TTFT p99 ms", "ITL p95 ms", "misses at")
_TRIAL_HEAD: Final = ("engine", "settings", "tok/s", "in SLO", "pressed", "")
Values = Mapping[str, Any]
_Section = tuple[str, Sequence[str], list[list[str]]]


def contest_lines(values: Values) -> Iterator[str]:
    """For a terminal."""
    for title, head, rows in _sections(values):
        yield title
        yield table(head, rows, left=2 if head is not _RATE_HEAD else 1)
        yield ""
    yield from _notes(values)


def contest_markdown(values: Values) -> str:
    """A page with the conditions."""
    lines = ["# Engines beside each other", ""]
    for title, head, rows in _sections(values):
        lines += [f"## {title}", "", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
        lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
        lines.append("")
    lines += [f"- {note}" for note in _notes(values)]
    lines += ["", "## Conditions", ""]
    lines += [f"- {name}: {value}" for name, value in flat(_described(values))]
    return "\n".join(lines) + "\n"


def contest_html(values: Values) -> str:
    """The same with a picture of the rates."""
    sections = [
        (
            f"part{number}",
            title,
            html_table(title, head, rows, worded=[i for i, name in enumerate(head) if name in ("settings", "")]),
        )
        for number, (title, head, rows) in enumerate(_sections(values))
    ]
    rates = dict(list(values["rates"].items())[: len(COLOURS)])
    if rates:
        sections.insert(2, ("plot", "Throughput against latency", f"<figure>{sweep_svg(rates)}</figure>"))
    notes = [[note] for note in _notes(values)]
    conditions = [[name, value] for name, value in flat(_described(values))]
    sections.append(("notes", "Notes", html_table("Notes", [""], notes)))
    sections.append(("conditions", "Conditions", html_table("Conditions", ["", ""], conditions)))
    return page("Engines beside each other", sections)


def _described(values: Values) -> Values:
    return {name: values[name] for name in ("conditions", "model", "load", "prompts", "slo", "trace") if name in values}


def _sections(values: Values) -> list[_Section]:
    found: list[_Section] = []
    if values["rounds"]:
        cells = [_round_cells(row) for row in values["rounds"]]
        found.append(("Closed loop, in alternation", _ROUND_HEAD, cells))
    if values["rates"]:
        highest = values["rates"].get(OURS, {}).get("highest_rate")
        rows = [_rate_cells(name, rate, highest) for name, rate in values["rates"].items()]
        found.append((f"Highest rate within {values['slo']}", _RATE_HEAD, rows))
    if values["trials"]:
        found.append(("Trials of settings", _TRIAL_HEAD, [_trial_cells(row) for row in values["trials"]]))
    return found


def _round_cells(row: Values) -> list[str]:
    ratio = row.get("ours_over_it", {}).get("tokens_per_second")
    sure = "-" if not ratio or ratio["interval"] is None else f"{ratio['interval'][0]:.2f}..{ratio['interval'][1]:.2f}"
    shown = [_number(row[name]) for name in ("ttft_p50_ms", "ttft_p99_ms", "itl_mean_ms", "itl_p95_ms")]
    over = f"{ratio['ratio']:.2f}x" if ratio else "-"
    return [row["engine"], row["settings"], _number(row["tokens_per_second"]), over, sure, *shown, str(row["failed"])]


def _rate_cells(name: str, rate: Values, ours: float | None) -> list[str]:
    own, at = rate["highest_rate"], rate["at_highest"] or {}
    over = f"{ours / own:.2f}x" if ours and own else "-"
    return [
        name,
        "none" if own is None else f"{own:.3g}",
        over,
        "-" if not at else f"{at['share']:.1%}",
        *(_number(at.get(key)) for key in ("tokens_per_second", "ttft_p99_ms", "itl_p95_ms")),
        _number(rate["lowest_rate_missed"]),
    ]


def _trial_cells(row: Values) -> list[str]:
    return [
        row["engine"],
        row["settings"],
        _number(row["tokens_per_second"]),
        _number(row["goodput_tokens_per_second"]),
        _pressed(row),
        _told(row),
    ]


def _pressed(row: Values) -> str:
    return "-" if row["pressed_rate"] is None else f"{row['pressed_share']:.0%} at {row['pressed_rate']:.3g}/s"


def _told(row: Values) -> str:
    chosen = [words for key, words in (("chosen", "chosen"), ("chosen_for_rates", "chosen for rates")) if row[key]]
    return str(row["reason"]) or ", ".join(chosen)


def _notes(values: Values) -> Iterator[str]:
    for engine, why in {**values["missing"], **values["unable"]}.items():
        yield f"{engine}: not measured: {why}"
    for row in values["rounds"]:
        for complaint in dict.fromkeys(row["complaints"]):
            yield f"{row['engine']}: THE CLIENT WAS THE BOTTLENECK: {complaint}"
    for engine, rate in values["rates"].items():
        if not rate["valid"]:
            yield f"{engine}: THE CLIENT WAS THE BOTTLENECK in the search for its highest rate"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.3g}"

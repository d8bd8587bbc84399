"""The page: figures of all runs beside each other, pictures, conditions. No script, no request to anybody.

Colours follow the reader's scheme; the pictures' own are replaced by the style sheet. Check boxes show and hide runs,
and tables wider than the window can be scrolled with the keyboard.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

from tidemill.bench.report.over_time import FAILED, over_time
from tidemill.bench.report.shares import shares
from tidemill.bench.report.shown import ShownRun
from tidemill.bench.svg import COLOURS, GRID, INK
from tidemill.core.errors import SetupError

__all__ = ["MOST_RUNS", "flat", "html_table", "page", "report_page", "write_page"]

MOST_RUNS: Final = len(COLOURS)
_DARK: Final = ("#5cb8d6", "#e8935e", "#8fc470", "#c094de")
_LATENCIES: Final = {
    "ttft_ms": "First token",
    "itl_ms": "Between tokens",
    "gap_ms": "Between chunks",
    "tpot_ms": "Per output token",
    "e2e_ms": "Whole answer",
    "queue_ms": "In the queue",
}


def report_page(runs: Sequence[ShownRun]) -> str:
    """The report of one run to four. Raises SetupError for more."""
    if not 1 <= len(runs) <= MOST_RUNS:
        raise SetupError(f"{len(runs)} runs do not fit one report; name 1 to {MOST_RUNS}")
    title = " and ".join(run.name for run in runs)
    sections = [
        ("figures", "Figures", _figures(runs)),
        ("time", "Over time", _picture(over_time(runs), _TIME)),
        ("shares", "How latencies are spread", _picture(shares(runs), _SHARES)),
        ("conditions", "Conditions", _conditions(runs)),
    ]
    return page(title, sections, head=_runs(runs))


_TIME: Final = (
    "Each dot is a request, at the time it was due. Red dots at the top are requests that failed; dashed lines are "
    "objectives, those for single tokens drawn where each request's mean is."
)
_SHARES: Final = "Samples of all requests that did not fail; dashed upright lines are objectives."


def page(title: str, sections: Sequence[tuple[str, str, str]], *, head: str = "") -> str:
    """A page of sections: id, heading and HTML of each."""
    links = "".join(f"<a href='#{name}'>{escape(words)}</a>" for name, words, _ in sections)
    body = "".join(
        f"<section id='{name}'><h2>{escape(words)}</h2>\n{content}</section>\n" for name, words, content in sections
    )
    return (
        "<!doctype html>\n<html lang='en'>\n<meta charset='utf-8'>\n"
        "<meta name='viewport' content='width=device-width,initial-scale=1'>\n"
        "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{escape(title)}</title>\n<style>{_style()}</style>\n"
        f"<header><h1>{escape(title)}</h1><nav aria-label='Sections'>{links}</nav>{head}</header>\n"
        f"<main>\n{body}</main>\n</html>\n"
    )


def write_page(path: Path, text: str) -> None:
    """Raises SetupError where it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SetupError(f"{path}: cannot be written: {error.strerror or error}", param="out") from error


def html_table(label: str, head: Sequence[str], rows: Sequence[Sequence[str]], *, worded: Sequence[int] = ()) -> str:
    """A table whose first column names the rows; it can be scrolled by keyboard where it is wider than the window.
    ``worded``: columns of words, which are broken into lines."""
    classes = ["" if column not in worded else " class='words'" for column in range(len(head))]
    made = "".join(f"<th scope='col'{kind}>{escape(cell)}</th>" for cell, kind in zip(head, classes, strict=True))
    lines = "".join(
        f"<tr><th scope='row'>{escape(row[0])}</th>"
        + "".join(f"<td{kind}>{escape(cell)}</td>" for cell, kind in zip(row[1:], classes[1:], strict=True))
        + "</tr>\n"
        for row in rows
    )
    return (
        f"<div class='wide' tabindex='0' role='region' aria-label='{escape(label, quote=True)}'>"
        f"<table><thead><tr>{made}</tr></thead><tbody>\n{lines}</tbody></table></div>\n"
    )


def _runs(runs: Sequence[ShownRun]) -> str:
    """A legend whose boxes show and hide the runs' curves."""
    boxes = "".join(
        f"<label><input type='checkbox' id='show{number}' checked><i class='key{number}'></i>{escape(run.name)}"
        f"<small>{escape(str(run.figures.get('target', '')))}</small></label>"
        for number, run in enumerate(runs)
    )
    return f"<fieldset><legend>Runs shown in the pictures</legend>{boxes}</fieldset>"


def _figures(runs: Sequence[ShownRun]) -> str:
    parts = [html_table("Figures of the runs", ["", *(run.name for run in runs)], list(_totals(runs)))]
    rows = []
    for name, words in _LATENCIES.items():
        for run in runs:
            found = run.figures.get(name)
            if found is None:
                continue
            low, high = found["p95_interval"]
            cells = [_ms(found[column]) for column in ("mean", "p50", "p90", "p95", "p99", "max")]
            whose = f"{words}, {run.name}" if len(runs) > 1 else words
            rows.append([whose, *cells, f"{_ms(low)}–{_ms(high)}", f"{found['samples']:,}"])
    head = ["ms", "mean", "p50", "p90", "p95", "p99", "max", "p95, 95 % sure", "samples"]
    parts.append(html_table("Latencies in milliseconds", head, rows) if rows else "<p>No answer brought a token.</p>")
    parts += [
        f"<p class='bad'>{escape(run.name)} does not count: {escape(complaint)}</p>\n"
        for run in runs
        for complaint in run.figures.get("complaints", ())
    ]
    return "".join(parts)


def _totals(runs: Sequence[ShownRun]) -> Iterator[list[str]]:
    def row(words: str, *path: str) -> list[str]:
        return [words, *(_number(_at(run.figures, path)) for run in runs)]

    yield row("Requests", "requests", "total")
    yield row("of them failed", "requests", "failed")
    yield row("Seconds", "seconds")
    yield row("Requests per second", "rates", "requests_per_second")
    yield row("Output tokens per second", "rates", "output_tokens_per_second")
    yield row("Prompt tokens per second", "rates", "prompt_tokens_per_second")
    if any(run.figures.get("slo") for run in runs):
        yield ["Objectives", *(str(_at(run.figures, ("slo", "expression")) or "–") for run in runs)]
        yield ["Requests within them", *(_percent(_at(run.figures, ("slo", "share"))) for run in runs)]
        yield row("Goodput, requests per second", "slo", "goodput_requests_per_second")
    yield ["Prompt tokens found cached", *(_percent(_at(run.figures, ("tokens", "cached_share"))) for run in runs)]
    yield row("Requests sent late, p99 in ms", "client", "lateness_ms", "p99")


def _conditions(runs: Sequence[ShownRun]) -> str:
    """Every condition and option that is not empty in all runs; those in which runs differ first."""
    seen = [dict(flat({name: run.run.get(name) for name in run.run if name != "figures"})) for run in runs]
    names = list(dict.fromkeys(name for values in seen for name in values))
    rows = [[name, *(values.get(name, "–") for values in seen)] for name in names]
    differ = [row for row in rows if len(set(row[1:])) > 1]
    alike = [row for row in rows if len(set(row[1:])) == 1]
    head = ["", *(run.name for run in runs)]
    if not differ:
        return html_table("Conditions", head, alike)
    return (
        "<h3>What differs</h3>\n"
        + html_table("Conditions that differ", head, differ)
        + "<details><summary>What is the same</summary>\n"
        + html_table("Conditions that are the same", head, alike)
        + "</details>\n"
    )


def flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Values that are not empty by their dotted names."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{before}{name}.")
        elif value not in (None, [], ""):
            yield f"{before}{name}", str(value)


def _picture(svg: str, words: str) -> str:
    return f"<figure>{svg}<figcaption>{escape(words)}</figcaption></figure>\n"


def _at(values: Mapping[str, Any], path: Sequence[str]) -> Any:
    found: Any = values
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _number(value: Any) -> str:
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _percent(share: Any) -> str:
    return "–" if share is None else f"{share:.1%}"


def _ms(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"


def _style() -> str:
    keys = "".join(
        f".key{n}{{background:var(--c{n})}}[stroke='{c}']{{stroke:var(--c{n})}}[fill='{c}']{{fill:var(--c{n})}}"
        f"body:has(#show{n}:not(:checked)) .run{n}{{display:none}}"
        for n, c in enumerate(COLOURS)
    )
    light = "".join(f"--c{n}:{c};" for n, c in enumerate(COLOURS))
    dark = "".join(f"--c{n}:{c};" for n, c in enumerate(_DARK))
    return (
        f":root{{color-scheme:light dark;--ink:#1d2429;--soft:#5b666d;--paper:#fff;--line:{GRID};--bad:{FAILED};"
        f"{light}}}"
        "@media(prefers-color-scheme:dark){:root{--ink:#e4e8ea;--soft:#9aa7ae;--paper:#14181b;--line:#2c3439;"
        f"--bad:#ff8a80;{dark}}}}}"
        "*{box-sizing:border-box}body{margin:0 auto;max-width:1060px;padding:24px;background:var(--paper);"
        "color:var(--ink);font:15px/1.5 system-ui,sans-serif}h1{font-size:24px;margin:0 0 8px;overflow-wrap:anywhere}"
        "h2{font-size:19px;margin:36px 0 12px}h3{font-size:16px}nav a{margin-right:16px;color:var(--c0)}"
        ":focus-visible{outline:2px solid var(--c0);outline-offset:2px}fieldset{margin:16px 0 0;border:1px solid "
        "var(--line);border-radius:6px}label{display:inline-flex;align-items:center;gap:6px;margin-right:20px}"
        "label i{width:14px;height:14px;border-radius:3px}small{color:var(--soft)}legend{color:var(--soft)}"
        ".wide{overflow-x:auto;margin:0 0 16px}table{border-collapse:collapse;font-variant-numeric:tabular-nums}"
        "th,td{padding:4px 12px;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}"
        "th[scope=row],th:first-child{text-align:left;padding-left:0;font-weight:400}thead th{color:var(--soft)}"
        ".words{white-space:normal;text-align:left;min-width:13em}figure{margin:0}figcaption{color:var(--soft);font-size:13px}svg{width:100%;height:auto}"
        "svg text{fill:var(--ink)}svg>rect{fill:none}.bad{color:var(--bad)}summary{cursor:pointer;margin:8px 0}"
        f"[stroke='{GRID}']{{stroke:var(--line)}}[stroke='{INK}']{{stroke:var(--soft)}}"
        f"[stroke='{FAILED}']{{stroke:var(--bad)}}{keys}"
        "#conditions td{white-space:normal;overflow-wrap:anywhere}"
        "@media print{fieldset,nav{display:none}}"
    )

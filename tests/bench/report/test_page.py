"""The page of runs: its figures are those of the run, its dots the requests, and it asks nobody for anything."""

from __future__ import annotations

import itertools
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.bench.figures.records import answered, failed, run_of
from tidemill.bench.figures.slo import parse_slo
from tidemill.bench.figures.summary import figures
from tidemill.bench.load.record import RequestRecord
from tidemill.bench.report.over_time import _MOST_DOTS, over_time
from tidemill.bench.report.page import report_page
from tidemill.bench.report.shares import shares
from tidemill.bench.report.shown import ShownRun
from tidemill.bench.results import write_run
from tidemill.bench.server_state import ServerState
from tidemill.cli.main import run as command
from tidemill.core.errors import SetupError

SLO = "ttft:p99<2s; itl:p95<150ms"
SVG = "{http://www.w3.org/2000/svg}"


def shown(records: list[RequestRecord], name: str = "one", **more: Any) -> ShownRun:
    values = {"target": f"<{name}>", **figures(run_of(records), slo=parse_slo(SLO))}
    run = {"conditions": {"processors": 2}, "load": {"rate": "4"}, "slo": SLO, "figures": values, **more}
    return ShownRun(name=name, records=records, states=(), run=run)


class Reader(HTMLParser):
    """Tags with their attributes, and the cells of the tables."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.cells: list[str] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:  # noqa: ARG002 (HTMLParser's)
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside in ("td", "th"):
            self.cells.append(data)


def test_the_page_has_the_figures_and_asks_nobody() -> None:
    records = [answered(k, due=k / 4) for k in range(40)] + [failed(40, due=10.0)]
    text = report_page([shown(records), shown(records, "two & <b>", load={"rate": "5"})])
    reader = Reader(text)
    names = {tag for tag, _ in reader.tags}
    assert {"script", "link", "img", "iframe", "object"} & names == set()
    urls = [value for _, given in reader.tags for key, value in given.items() if key in ("src", "href", "action")]
    assert urls
    assert all(value and value.startswith("#") for value in urls)
    assert "url(" not in text
    assert "@import" not in text
    values = shown(records).figures
    for part in (f"{values['ttft_ms']['p95']:,.0f}", f"{values['itl_ms']['mean']:.1f}", "41", "97.6%", SLO, "4", "5"):
        assert part in reader.cells, part
    assert "&lt;one&gt;" in text
    assert "<one>" not in text
    assert "<b>" not in text
    assert len(text) < 60_000
    boxes = [given["id"] for tag, given in reader.tags if tag == "input"]
    assert boxes == ["show0", "show1"]
    for number in (0, 1):
        assert f"body:has(#show{number}:not(:checked)) .run{number}{{display:none}}" in text
        assert f"class='run{number}'" in text
    assert all(given.get("tabindex") == "0" for _, given in reader.tags if given.get("class") == "wide")
    ids = {given["id"] for _, given in reader.tags if "id" in given}
    assert {value[1:] for value in urls if value} <= ids  # every link leads somewhere


def test_every_request_is_a_dot_where_its_time_is() -> None:
    records = [answered(k, due=float(k), first=1.0 + k) for k in range(5)] + [failed(5, due=2.5)]
    root = ElementTree.fromstring(over_time([shown(records)]))
    dots = [re.findall(r"M([\d.]+) ([\d.]+)h0", item.attrib["d"]) for item in root.iter(f"{SVG}path")]
    assert [len(found) for found in dots[:2]] == [5, 1]
    across = [float(x) for x, _ in dots[0]]
    steps = {round(b - a, 0) for a, b in itertools.pairwise(across)}
    assert len(steps) == 1  # a second apart each
    up = [float(y) for _, y in dots[0]]
    assert up == sorted(up, reverse=True)  # later ones waited longer
    left, right = across[2], across[3]
    assert float(dots[1][0][0]) == pytest.approx((left + right) / 2, abs=0.2)


def test_everything_is_drawn_inside_whatever_the_run() -> None:
    states = [ServerState(at=float(k), running=k, waiting=2 * k) for k in range(4)]
    many = [answered(k, due=k / 1000, first=0.01 + (k % 97) ** 2 / 10, tokens=2) for k in range(2 * _MOST_DOTS)]
    runs = [[], [failed(0)], [answered(0, tokens=1)], many]
    for picture in (over_time, shares):
        text = picture([ShownRun(name="n", records=r, states=states, run={"slo": SLO, "figures": {}}) for r in runs])
        root = ElementTree.fromstring(text)
        width, height = map(int, root.attrib["viewBox"].split()[2:])
        points = [pair.split(",") for found in re.findall(r"points='([^']*)'", text) for pair in found.split()]
        points += [list(pair) for pair in re.findall(r"M([\d.]+) ([\d.]+)h0", text)]
        assert len(points) > 100
        assert all(0 <= float(x) <= width and 0 <= float(y) <= height for x, y in points)
        assert len(text) < 500_000
    words = ElementTree.fromstring(over_time([shown([answered(0)])])).iter(f"{SVG}text")
    assert not any("In the server" in (item.text or "") for item in words)


def test_of_many_requests_the_slowest_are_kept() -> None:
    records = [answered(k, due=k / 100, first=30.0 if k == 4321 else 0.5, tokens=2) for k in range(2 * _MOST_DOTS)]
    text = over_time([shown(records)])
    dots = re.findall(r"M([\d.]+) ([\d.]+)h0", re.findall(r"<path d='([^']*)'", text)[0])
    assert len(dots) == _MOST_DOTS
    assert min(float(y) for _, y in dots) < 60  # of the panel from 34 to 152 pixels


def test_reports_of_saved_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = [answered(k) for k in range(5)]
    run = shown(records)
    write_run(tmp_path / "a", records, run.run, [ServerState(at=1.0, running=2.0, waiting=3.0)])
    out = tmp_path / "page.html"
    assert command(["bench", "report", str(tmp_path / "a"), "--out", str(out)]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["bytes"] == out.stat().st_size
    assert "In the server" in out.read_text()
    assert ShownRun.read(tmp_path / "a").records == records
    assert command(["bench", "report", str(tmp_path / "no"), "--out", str(out)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    (tmp_path / "a" / "server.jsonl").write_text('{"at": 1}\n')
    with pytest.raises(SetupError, match=r"server\.jsonl:1: is no state"):
        ShownRun.read(tmp_path / "a")
    (tmp_path / "a" / "run.json").write_text("[]")
    with pytest.raises(SetupError, match="is no run"):
        ShownRun.read(tmp_path / "a")
    with pytest.raises(SetupError, match="5 runs do not fit"):
        report_page([run] * 5)

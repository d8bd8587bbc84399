"""What there is to see of a gateway, as JSON and as a page."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from tests.gateway.conftest import Behind
from tests.support.browser import CHROMIUM, browsing
from tidemill.bench.scripted.script import ScriptedAnswer, Step

GOOD = ScriptedAnswer(steps=(Step(role=True), Step(tokens=1, times=3)))
BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


async def test_the_overview_counts_what_happened(behind: Behind) -> None:
    async with behind(GOOD, ScriptedAnswer(status=500), cache={"megabytes": 1}) as gateway:
        for number in range(4):
            await gateway.chat(temperature=0, max_tokens=number + 1)
        found = (await gateway.client.get("/admin/overview")).json()
        attempts = {one["name"]: one["attempts"] for one in found["replicas"]}
        assert attempts["r0"] == {"answered": 4}
        assert attempts["r1"]["failed"] >= 1
        assert found["routes"]["/v1/chat/completions"] == {"200": 4}
        assert found["policy"] == "round-robin"
        assert found["cache"]["on"]
        assert found["cache"]["requests"] == {"miss": 4}
        assert len(found["decisions"]) == 4
        newest = found["decisions"][0]
        assert newest["outcome"] == "answered"
        assert newest["replicas"][-1] == "r0"
        assert (found["engines"], found["discovery"], found["redis"]) == ([], [], None)


async def test_only_administrators_see_it(behind: Behind) -> None:
    async with behind(GOOD, server={"api_keys": ["secret-key-1"]}) as gateway:
        assert (await gateway.client.get("/admin/overview")).status_code == 401
        key = {"authorization": "Bearer secret-key-1"}
        assert (await gateway.client.get("/admin/overview", headers=key)).status_code == 403
        assert (await gateway.client.get("/", headers=BROWSER)).status_code == 200, "the page itself says nothing"


async def test_the_page_brings_all_it_needs_and_lets_nothing_else_run(behind: Behind) -> None:
    async with behind(GOOD) as gateway:
        page = await gateway.client.get("/", headers=BROWSER)
        listed = await gateway.client.get("/")
    assert listed.json()["name"] == "tidemill gateway"
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\b", page.text)
    assert not re.search(r'\s(?:on\w+|style)="', page.text)


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")
async def test_a_browser_shows_it_and_hostile_names_stay_text(behind: Behind, tmp_path: Path) -> None:
    bad = ScriptedAnswer(status=500, message="<img src=x onerror=document.title=1>")
    async with behind(GOOD, bad) as gateway:
        gateway.fleet.upstreams[1].problem = "<b id=hostile>down</b>"
        gateway.fleet.upstreams[1].healthy = False
        await asyncio.gather(*(gateway.chat(model="<i id=hostile>m</i>") for _ in range(4)))
        async with browsing(tmp_path) as tab:
            await tab.go(f"http://127.0.0.1:{gateway.port}/")
            await tab.until("document.querySelectorAll('#replicas tr').length === 2")
            await tab.until("document.querySelectorAll('#decisions tr').length === 4")
            assert await tab.value("document.getElementById('hostile') === null")
            shown = await tab.value("document.body.innerText")
            assert "r0" in shown
            assert "<b id=hostile>down</b>" in shown
            assert "1 of 2 replicas take work" in shown
            await tab.value("document.getElementById('filter').value = 'r1'")
            await tab.value("document.getElementById('filter').dispatchEvent(new Event('input'))")
            await tab.until("document.querySelectorAll('#replicas tr').length === 1")
            assert tab.complaints == []
            hosts = {url.split("/")[2] for url in tab.requested if url.startswith("http")}
            assert hosts == {f"127.0.0.1:{gateway.port}"}

"""The page at / and what it reads: as bytes, and in a browser where there is one."""

from __future__ import annotations

import base64
import hashlib
import re

import pytest

from tests.support.browser import CHROMIUM, browsing
from tests.support.scripted_engine import Fault, Step
from tests.support.toy_text import ToyText
from tidemill.core.config import ServerConfig
from tidemill.core.metrics import TIME_TO_FIRST_TOKEN
from tidemill.serve.metrics import PrometheusMetrics
from tidemill.serve.page import wants_html

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
in_browser = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")


@pytest.mark.parametrize(
    ("accept", "html"),
    [
        (BROWSER, True),
        ("application/json, text/html;q=0.5", True),
        ("TEXT/HTML", True),
        ("*/*", False),
        ("", False),
        ("application/json", False),
        ("text/html;q=0, application/json", False),
        ("text/html ; q=0.000", False),
        ("text/htmlx", False),
    ],
)
def test_who_gets_the_page(accept, html):
    assert wants_html(accept) is html


async def test_programs_get_the_list_and_browsers_the_page(http):
    async with http([]) as served:
        listed = await served.client.get("/")
        page = await served.client.get("/", headers={"accept": BROWSER})
    assert listed.json()["name"] == "tidemill"
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert listed.headers["vary"] == page.headers["vary"] == "Accept"


async def test_the_page_is_small_and_names_no_other_host(http):
    async with http([]) as served:
        page = await served.client.get("/", headers={"accept": BROWSER})
    assert len(page.content) < 60_000
    assert set(re.findall(r"(?:https?:)?//[\w.]+", re.sub(r"^\s*//.*", "", page.text, flags=re.M))) <= {
        "http://www.w3.org"
    }
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|srcdoc|\beval\b", page.text)
    assert not re.search(r'\s(?:on\w+|style)="', page.text), "the policy forbids handlers and styles in attributes"


async def test_the_policy_lets_only_the_pages_own_script_and_style_run(http):
    async with http([]) as served:
        page = await served.client.get("/", headers={"accept": BROWSER})
    policy = dict(part.split(" ", 1) for part in page.headers["content-security-policy"].split("; "))
    for element, directive in (("script", "script-src"), ("style", "style-src")):
        (inside,) = re.findall(f"<{element}>(.*?)</{element}>", page.text, re.S)
        assert len(inside) > 1000
        assert policy[directive] == f"'sha256-{base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()}'"
    assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
    assert policy["connect-src"] == "'self'"


async def test_the_engines_state_is_an_object(http):
    async with http(list(b"tide")) as served:
        await served.chat()
        answer = await served.client.get("/v1/engine/stats")
    state = answer.json()
    assert answer.headers["cache-control"] == "no-store"
    assert (state["model"], state["ready"], state["problem"]) == ("toy", True, None)
    assert (state["running"], state["waiting"], state["restarts"]) == (0, 0, 0)
    blocks = {"blocks": 64, "held": 0, "cached": 0, "free": 64, "block_size": 16, "fragmentation": 0}
    assert state["kv"] == blocks | {"format": "f16", "bytes_per_token": 320}
    assert state["tokens"]["generated"] == 5
    first, gaps = state["time_to_first_token"], state["time_per_output_token"]
    assert (first["count"], gaps["count"]) == (1, 3)
    assert first["counts"][-1] == 1
    assert len(first["counts"]) == len(first["bounds"]) + 1


def test_a_distribution_counts_what_is_at_most_each_bound():
    metrics = PrometheusMetrics()
    for value in (0.004, 0.03, 0.03, 500.0):
        metrics.observe(TIME_TO_FIRST_TOKEN, value)
    found = metrics.distribution(TIME_TO_FIRST_TOKEN)
    assert found["counts"] == [1, 1, 1, *[3] * 11, 4]
    assert (found["count"], found["sum"]) == (4, 500.064)


async def test_the_state_says_why_no_work_is_taken_and_is_for_those_with_a_key(http):
    async with http([], config=ServerConfig(api_keys=("k" * 16,))) as served:
        served.engine.not_ready = "no step for 60 s"
        refused = await served.client.get("/v1/engine/stats")
        state = await served.client.get("/v1/engine/stats", headers={"authorization": "Bearer " + "k" * 16})
        page = await served.client.get("/", headers={"accept": BROWSER})
    assert (refused.status_code, page.status_code) == (401, 200)
    assert (state.json()["ready"], state.json()["problem"]) == (False, "no step for 60 s")


MARKUP = '<img src=x onerror="document.title=1"><script>document.title=2</script> & </div>'


def _id(name: str) -> str:
    return f"document.getElementById('{name}')"


async def _ask(tab, text: str) -> None:
    await tab.value(f"{_id('prompt')}.focus()")
    await tab.write(text)
    await tab.press("Enter")


@in_browser
async def test_a_conversation_with_settings_streams_and_stays_text(serve, tmp_path):
    text = ToyText([MARKUP])
    async with serve([text.id_of(MARKUP)], text=text) as served, browsing(tmp_path) as tab:
        base = f"http://127.0.0.1:{served.port}/"
        await tab.go(base)
        await tab.until(f"{_id('state')}.textContent === 'ready' && {_id('model')}.textContent === 'toy'")
        for name, value in (("temperature", "0"), ("top_p", "0.5"), ("max_tokens", "7"), ("seed", "3")):
            await tab.value(f"{_id(name)}.value = '{value}'")
        await tab.value(f"{_id('system')}.value = 'Be brief'")
        await _ask(tab, "<b>one</b>")
        await tab.until("document.querySelectorAll('#log .about').length === 1 && !running")
        shown = await tab.value("[...document.querySelectorAll('#log .text')].map(e => e.textContent)")
        assert shown == ["<b>one</b>", MARKUP]
        assert await tab.value("document.querySelectorAll('#log img, #log script, #log b').length") == 0
        assert await tab.value("document.title") == "Tidemill"
        assert (await tab.value("document.querySelector('.about').textContent")).startswith("2 tokens · first after ")
        (request,) = served.engine.requests
        assert bytes(request.prompt) == b"<system>Be brief\n<user><b>one</b>\n<assistant>"
        sampling = request.sampling
        assert (sampling.temperature, sampling.top_p, sampling.max_tokens, sampling.seed) == (0, 0.5, 7, 3)
        await _ask(tab, "two")
        await tab.until("document.querySelectorAll('#log .about').length === 2 && !running")
        assert bytes(served.engine.requests[1].prompt).endswith(f"<assistant>{MARKUP}\n<user>two\n<assistant>".encode())
        assert {url.rpartition(str(served.port))[0] for url in tab.requested if "://" in url} == {"http://127.0.0.1:"}
        assert tab.complaints == []


CANNED = """
window.bodies = [];
const real = window.fetch, lines = [
  {choices: [{delta: {role: 'assistant', content: ''}, finish_reason: null}]},
  {choices: [{delta: {reasoning_content: 'Höhe <i>'}, finish_reason: null}]},
  {choices: [{delta: {reasoning_content: ' der Flut'}, finish_reason: null}]},
  {choices: [{delta: {content: '{"ebb": "潮"}'}, finish_reason: null}]},
  {choices: [{delta: {}, finish_reason: 'stop'}]},
  {choices: [], usage: {completion_tokens: 9}},
].map(event => 'data: ' + JSON.stringify(event) + '\\n\\n').join('') + 'data: [DONE]\\n\\n';
window.fetch = (url, options) => {
  if (!url.endsWith('completions')) return real(url, options);
  window.bodies.push(JSON.parse(options.body));
  const bytes = new TextEncoder().encode(lines);
  return Promise.resolve(new Response(new ReadableStream({start(stream) {
    for (let i = 0; i < bytes.length; i += 3) stream.enqueue(bytes.slice(i, i + 3));
    stream.close();
  }})));
};
"""
"""An answer with reasoning, cut into pieces of three bytes wherever that falls."""


@in_browser
async def test_reasoning_is_told_apart_however_the_stream_is_cut_and_json_is_asked_for(serve, tmp_path):
    async with serve([]) as served, browsing(tmp_path) as tab:
        await tab.go(f"http://127.0.0.1:{served.port}/")
        await tab.value(CANNED)
        await tab.value(f"{_id('json')}.checked = true")
        await _ask(tab, "how high?")
        await tab.until("document.querySelectorAll('#log .about').length === 1 && !running")
        shown = await tab.value("[...document.querySelectorAll('#log .assistant .text')].map(e => e.textContent)")
        assert shown == ["Höhe <i> der Flut", '{"ebb": "潮"}']
        assert await tab.value("messages[1].content") == '{"ebb": "潮"}', "what it thought is not said again"
        (body,) = await tab.value("bodies")
        assert body == {
            "messages": [{"role": "user", "content": "how high?"}],
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": 512,
            "response_format": {"type": "json_object"},
        }
        assert (await tab.value("document.querySelector('.about').textContent")).endswith("stop")


@in_browser
async def test_escape_stops_an_answer_in_the_engine_and_keeps_what_was_said(serve, tmp_path):
    async with serve([Step(tokens=(97,), delay=0.01)] * 100_000) as served, browsing(tmp_path) as tab:
        await tab.go(f"http://127.0.0.1:{served.port}/")
        await _ask(tab, "on and on")
        await tab.until("document.querySelectorAll('#log .text')[1]?.textContent.length > 3")
        await tab.until(f"{_id('running')}.textContent === '1' && {_id('held')}.textContent === '1'")
        assert await tab.value(f"[{_id('send')}.disabled, {_id('stop')}.disabled]") == [True, False]
        await tab.press("Escape")
        await tab.until("!running")
        await served.engine.until(lambda: served.engine.active == 0)
        assert len(served.engine.aborted) == 1
        assert (await tab.value("document.querySelector('.about').textContent")).endswith("stopped")
        assert await tab.value("messages.map(m => m.role)") == ["user", "assistant"]
        assert (await tab.value("messages[1].content")).startswith("aaaa")


@in_browser
async def test_a_refusal_is_shown_and_the_question_can_be_sent_again(serve, tmp_path):
    script = [97, Fault(error="the executor broke")]
    async with serve(script, max_model_len=64) as served, browsing(tmp_path) as tab:
        await tab.go(f"http://127.0.0.1:{served.port}/")
        await tab.value(f"{_id('max_tokens')}.value = '9'")
        await _ask(tab, "x" * 100)
        await tab.until("document.querySelectorAll('#log .failed').length === 1 && !running")
        assert "max_model_len is 64" in await tab.value("document.querySelector('.failed .about').textContent")
        assert await tab.value(f"{_id('prompt')}.value.length") == 100
        assert await tab.value("messages.length") == 0
        await tab.value(f"{_id('prompt')}.value = ''; {_id('max_tokens')}.value = '0'")
        await _ask(tab, "y")
        assert (await tab.until(f"{_id('told')}.textContent")).startswith("Most tokens")
        assert served.engine.requests == []
        await tab.value(f"{_id('max_tokens')}.value = ''")
        await tab.press("Enter")
        await tab.until("document.querySelectorAll('#log .failed').length === 2 && !running")
        assert "the executor broke" in await tab.value("document.querySelectorAll('.failed .about')[1].textContent")


@in_browser
async def test_the_key_is_asked_for_sent_and_kept_for_the_tab(serve, tmp_path):
    config = ServerConfig(api_keys=("a-key-for-the-page",))
    async with serve(list(b"ok"), config=config) as served, browsing(tmp_path) as tab:
        await tab.go(f"http://127.0.0.1:{served.port}/")
        await tab.until(f"{_id('state')}.textContent.startsWith('an API key is needed') && {_id('settings')}.open")
        await tab.value(f"{_id('key')}.focus()")
        await tab.write("a-key-for-the-page")
        await tab.until(f"{_id('state')}.textContent === 'ready'")
        await _ask(tab, "hi")
        await tab.until("document.querySelectorAll('#log .about').length === 1 && !running")
        assert await tab.value("document.querySelectorAll('#log .text')[1].textContent") == "ok"
        assert await tab.value("[sessionStorage.getItem('tidemill-key'), localStorage.length]") == [
            "a-key-for-the-page",
            0,
        ]
        assert "a-key" not in await tab.value("location.href + document.cookie")


@in_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_it_fits_a_phone_can_be_read_and_reached_by_keyboard(serve, tmp_path, scheme):
    async with serve([Step(tokens=tuple(b"W" * 300))]) as served, browsing(tmp_path) as tab:
        await tab.resize(360, 640)
        await tab.scheme(scheme)
        await tab.go(f"http://127.0.0.1:{served.port}/")
        await tab.value(f"{_id('settings')}.open = true")
        await _ask(tab, "unbroken")
        await tab.until("document.querySelectorAll('#log .about').length === 1 && !running")
        assert await tab.value("document.documentElement.scrollWidth") <= 360
        assert await tab.value(f"{_id('log')}.scrollWidth - {_id('log')}.clientWidth") <= 0
        reached = []
        await tab.value(f"{_id('prompt')}.focus()")
        for _ in range(12):
            reached.append(await tab.value("document.activeElement.id || document.activeElement.tagName"))
            await tab.press("Tab")
        assert reached[:5] == ["prompt", "send", "clear", "SUMMARY", "system"]
        assert {"temperature", "top_p", "max_tokens", "seed", "json", "key"} <= {*reached}
        assert await tab.value(CONTRAST) >= 4.5


CONTRAST = """(() => {
  const linear = (v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = (colour) => {
    const c = colour.match(/[\\d.]+/g).slice(0, 3).map(v => linear(v / 255));
    return 0.2126 * c[0] + 0.7152 * c[1] + 0.0722 * c[2];
  };
  const back = (e) => {
    const c = getComputedStyle(e).backgroundColor;
    return c === 'rgba(0, 0, 0, 0)' ? back(e.parentElement) : c;
  };
  const shown = 'h1, dt, dd, .text, .about, button:enabled, label, small, .notes, .state, summary, .model';
  const pairs = [...document.querySelectorAll(shown)].map(e => [light(getComputedStyle(e).color), light(back(e))]);
  return Math.min(...pairs.map(([a, b]) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)));
})()"""
"""The least contrast of text with what is behind it, as WCAG counts it."""

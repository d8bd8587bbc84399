"""`tidemill top`: what it makes of metrics pages, what it draws, and that it runs in a terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tidemill.cli.main import run
from tidemill.cli.top_reading import Distribution, Reading, Server, figures, parse
from tidemill.cli.top_screen import screen
from tidemill.core.errors import TidemillError
from tidemill.core.metrics import TIME_PER_OUTPUT_TOKEN, TIME_TO_FIRST_TOKEN
from tidemill.core.tokens import EngineStats
from tidemill.serve.metrics import PrometheusMetrics

VLLM = """
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="Qwen/Qwen3-8B"} 3.0
vllm:num_requests_running{engine="1",model_name="Qwen/Qwen3-8B"} 4.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="Qwen/Qwen3-8B"} 2.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="Qwen/Qwen3-8B"} 0.25
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="2000",swap_space="4"} 1.0
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="Qwen/Qwen3-8B"} 100.0
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{engine="0",model_name="Qwen/Qwen3-8B"} 75.0
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="Qwen/Qwen3-8B"} 5000.0
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1",model_name="Qwen/Qwen3-8B"} 10.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="Qwen/Qwen3-8B"} 10.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="Qwen/Qwen3-8B"} 10.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="Qwen/Qwen3-8B"} 0.5
"""


def page(stats: EngineStats, *, first: tuple[float, ...] = (), gaps: tuple[float, ...] = ()) -> str:
    metrics = PrometheusMetrics()
    metrics.watch(lambda: stats, model="tide")
    for value in first:
        metrics.observe(TIME_TO_FIRST_TOKEN, value)
    for value in gaps:
        metrics.observe(TIME_PER_OUTPUT_TOKEN, value)
    return metrics.page().decode()


BUSY = EngineStats(
    running=3,
    waiting=2,
    kv_blocks_total=100,
    kv_blocks_held=40,
    kv_blocks_cached=35,
    kv_blocks_free=25,
    kv_block_size=16,
    prompt_tokens_total=1000,
    generation_tokens_total=700,
    prefix_asked_tokens_total=200,
    prefix_hit_tokens_total=50,
    preemptions_total=6,
    restarts_total=1,
)


def test_figures_between_two_readings_of_our_own_page() -> None:
    idle = parse(page(EngineStats(generation_tokens_total=500, prompt_tokens_total=960), first=(4.0,)), time=10.0)
    busy = parse(page(BUSY, first=(4.0, 0.03, 0.03), gaps=(0.015,)), time=12.0)
    found = figures(idle, busy)
    assert found == {
        "source": "tidemill",
        "model": "tide",
        "ready": True,
        "problem": None,
        "running": 3,
        "waiting": 2,
        "tokens_per_second": 100.0,
        "prompt_tokens_per_second": 20.0,
        "time_to_first_token": {"p50": pytest.approx(0.0375), "p95": pytest.approx(0.04875)},  # not the 4 s of before
        "time_per_output_token": {"p50": pytest.approx(0.015), "p95": pytest.approx(0.0195)},
        "prefix_hit_share": 0.25,
        "kv": {"usage": 0.4, "blocks": 100, "held": 40, "cached": 35, "block_size": 16},
        "preemptions": 6,
        "restarts": 1,
    }


def test_where_nothing_came_between_the_quantiles_are_of_all() -> None:
    reading = parse(page(BUSY, first=(0.03,)), time=1.0)
    assert figures(reading, reading)["time_to_first_token"]["p50"] == pytest.approx(0.0375)
    assert figures(reading, reading)["time_per_output_token"]["p50"] is None
    assert figures(reading, reading)["tokens_per_second"] is None


def test_an_engine_that_was_started_again_has_no_negative_rate() -> None:
    before, now = parse(page(BUSY), time=1.0), parse(page(EngineStats()), time=2.0)
    assert figures(before, now)["tokens_per_second"] is None


def test_vllms_page_is_read_and_what_it_lacks_is_left_out() -> None:
    reading = parse(VLLM, time=1.0)
    found = figures(reading, reading)
    assert (found["source"], found["model"]) == ("vllm", "Qwen/Qwen3-8B")
    assert (found["running"], found["waiting"], found["preemptions"]) == (7, 2, None)
    assert found["kv"] == {"usage": 0.25, "blocks": 2000, "held": 500, "cached": None, "block_size": 16}
    assert found["prefix_hit_share"] == 0.75
    assert found["time_to_first_token"]["p50"] == pytest.approx(0.05)
    assert found["time_per_output_token"]["p50"] is None


@pytest.mark.parametrize("text", ["", "up 1\n", "<html>not metrics</html>"])
def test_other_pages_are_refused_in_a_line(text: str) -> None:
    with pytest.raises(TidemillError, match="the server's /metrics"):
        parse(text, time=0.0)


def test_a_quantile_above_the_last_bound_is_that_bound() -> None:
    assert Distribution(bounds=(1.0, float("inf")), counts=(0, 5)).quantile(0.5) == 1.0
    assert Distribution(bounds=(1.0, 3.0, float("inf")), counts=(2, 4, 4)).quantile(0.75) == 2.0
    assert Distribution(bounds=(1.0, float("inf")), counts=(0, 0)).quantile(0.5) is None


def test_the_screen() -> None:
    found = figures(parse(page(EngineStats(generation_tokens_total=500)), time=10.0), parse(page(BUSY), time=12.0))
    assert screen(found, [0.0, 50.0, 100.0], url="http://h:1", width=80, colour=False) == [
        "tide  http://h:1",
        "● busy",
        "",
        "Running         3                   Tokens/s               100",
        "Queued          2                   Prompt tokens/s        500",
        "TTFT p50 · p95  – · –               ITL p50 · p95          – · –",
        "Prefix hits     25%                 Preemptions, restarts  6, 1",
        "",
        "Tokens per second (peak 100)",
        "▁▄█",
        "",
        "KV blocks: 40% held of 100 x 16 tokens, 35 cached",
        "█" * 40 + "▒" * 35 + "·" * 5,
        "·" * 20,
    ]


def test_a_narrow_screen_has_its_figures_below_each_other_and_whole() -> None:
    found = figures(parse(page(EngineStats(generation_tokens_total=500)), time=10.0), parse(page(BUSY), time=12.0))
    lines = screen(found, [100.0], url="http://h:1", width=60, height=40, colour=False)
    assert lines[3:11] == [
        "Running                3",
        "Tokens/s               100",
        "Queued                 2",
        "Prompt tokens/s        500",
        "TTFT p50 · p95         – · –",
        "ITL p50 · p95          – · –",
        "Prefix hits            25%",
        "Preemptions, restarts  6, 1",
    ]


def test_held_cached_and_free_blocks_look_different() -> None:
    found = figures(parse(page(EngineStats(generation_tokens_total=500)), time=10.0), parse(page(BUSY), time=12.0))
    blocks = screen(found, [100.0], url="http://h:1", width=100)[-1]
    assert re.findall("\x1b\\[([0-9;]+)m([^\x1b])", blocks) == [("36", "█"), ("36;2", "▒"), ("2", "·")]


def test_a_screen_fits_its_terminal_and_takes_no_commands_from_the_server() -> None:
    reading = Reading(time=0, source="vllm", model="\x1b[2Jevil\n", problem="\x07" + "x" * 300)
    lines = screen(figures(reading, reading), [1.0] * 500, url="http://h", width=30, height=9, colour=False)
    assert len(lines) <= 9
    assert all(len(line) <= 30 and line.isprintable() for line in lines)
    plain = screen(figures(reading, reading), [1.0, 9.0], url="http://h", colour=False, unicode=False)
    assert all(line.isascii() for line in plain)


class _Served:
    """A server of canned pages, changed by the test while it runs."""

    def __init__(self) -> None:
        self.pages: dict[str, tuple[int, str]] = {"/metrics": (200, page(BUSY)), "/ready": (200, "{}")}
        self.keys: list[str | None] = []
        self.url = ""


@contextmanager
def served() -> Iterator[_Served]:
    state = _Served()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.keys.append(self.headers.get("Authorization"))
            status, body = state.pages.get(self.path, (404, ""))
            self.send_response(status)
            if status == 302:
                self.send_header("Location", body)
            self.send_header("Content-Length", str(len(body.encode())))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_once_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    with served() as server:
        server.pages["/ready"] = (503, json.dumps({"error": {"message": "the engine is stuck"}}))
        arguments = ["top", "--url", server.url + "/v1/", "--once", "--json", "--interval", "0.1", "--api-key", "k"]
        assert run(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["url"], found["running"], found["problem"]) == (server.url, 3, "the engine is stuck")
    assert set(server.keys) == {"Bearer k"}


def test_what_goes_wrong_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    def says(*arguments: str) -> str:
        code = run(["top", *arguments])
        assert code in (1, 2)
        return capsys.readouterr().err

    with served() as server, served() as other:
        server.pages["/metrics"] = (401, "{}")
        assert "--api-key or TIDEMILL_API_KEY" in says("--once", "--url", server.url)
        server.pages["/metrics"] = (302, other.url + "/metrics")
        assert "answers with status 302" in says("--once", "--url", server.url, "--api-key", "secret")
        assert other.keys == []
    assert "cannot read http://127.0.0.1:9/metrics" in says("--once", "--url", "http://127.0.0.1:9")
    assert "url must be like" in says("--once", "--url", "ftp://x")
    assert "give --once" in says("--json")
    assert "needs a terminal" in says("--url", "http://127.0.0.1:9")


def test_vllm_without_a_route_for_readiness_is_asked_for_its_health() -> None:
    with served() as server:
        server.pages = {"/metrics": (200, VLLM), "/health": (503, "")}
        assert Server(server.url).read().problem == "it is not ready: status 503"


_IN_TERMINAL = """
import fcntl, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # its keys are this process's signals
from tidemill.cli.main import main
main()
"""


class _Terminal:
    """A process in a pseudo-terminal of 24 lines, and the last thing it drew."""

    def __init__(self, *arguments: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.before = termios.tcgetattr(slave)
        self._slave = slave
        environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", _IN_TERMINAL, *arguments],
            start_new_session=True,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**environment, "PYTHONIOENCODING": "utf-8"},
        )
        self.output = b""

    @property
    def drawn(self) -> str:
        """The last whole screen, without colours."""
        screens = self.output.decode("utf-8", "replace").split("\x1b[H")
        return re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", screens[-2] if len(screens) > 2 else screens[-1])

    def until(self, text: str, seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while text not in self.drawn:
            assert time.monotonic() < end, self.drawn
            if select.select([self._master], [], [], 0.1)[0]:
                self.output += os.read(self._master, 65536)

    def press(self, key: bytes) -> None:
        os.write(self._master, key)

    def end(self) -> int:
        """Wait for the end; the exit code. The terminal has to be as it was."""
        code = self.process.wait(60)
        while select.select([self._master], [], [], 0.1)[0]:
            self.output += os.read(self._master, 65536)
        after = termios.tcgetattr(self._slave)
        os.close(self._slave)
        os.close(self._master)
        assert after == self.before
        assert self.output.endswith(b"\x1b[?25h\x1b[?1049l")
        return code


@pytest.mark.parametrize("key", [b"q", b"\x03"], ids=["q", "ctrl-c"])
def test_in_a_terminal_it_follows_a_server_through_its_death(key: bytes) -> None:
    with served() as server:
        terminal = _Terminal("top", "--url", server.url, "--interval", "0.1")
        try:
            terminal.until("● busy")
            assert "Running         3 " in terminal.drawn
            server.pages["/metrics"] = (502, "")
            terminal.until("answers with status 502")
            assert "Running         3 " in terminal.drawn
            server.pages["/metrics"] = (200, page(EngineStats(kv_blocks_total=8)))
            terminal.until("● ready")
            assert "Running         0 " in terminal.drawn
            assert b"\x1b[?1049h" in terminal.output
            terminal.press(key)
            assert terminal.end() == 0
        finally:
            terminal.process.kill()
            terminal.process.wait()

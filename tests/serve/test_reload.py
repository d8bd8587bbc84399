"""Settings that are read again while the server runs: what can change does, what cannot is named, nothing breaks."""

from __future__ import annotations

import json
import logging
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.server import serving
from tests.support.scripted_engine import ScriptedEngine
from tests.support.toy_text import ToyText, toy_info
from tidemill.cli.config_file import read_config_file
from tidemill.core.config import EngineConfig, ModelConfig, SchedulerConfig, ServerConfig
from tidemill.core.errors import ConfigError
from tidemill.core.settings import values_of
from tidemill.frontend.backend import LocalBackend
from tidemill.serve.logs import set_log_level
from tidemill.serve.reload import LIVE_ENGINE, LIVE_SERVER, Reloaded, Reloader
from tidemill.serve.server import HttpServer

TINY = Path(__file__).parents[1] / "golden" / "data" / "bert"
ENGINE = EngineConfig(model=ModelConfig(path="toy"))
ADMIN = {"authorization": "Bearer k"}


class Rig:
    """A server whose settings are what the test says."""

    def __init__(self, config: ServerConfig) -> None:
        self.server, self.engine = config, ENGINE
        self.engine_got: list[EngineConfig] = []
        self.reloader = Reloader(
            lambda: (self.engine, self.server), engine=ENGINE, server=config, change_engine=self.engine_got.append
        )
        text = ToyText()
        self.scripted = ScriptedEngine(list(b"ok"), info=toy_info(text))
        backend = LocalBackend(self.scripted, text)
        self.http = HttpServer(
            config, backend, engine=self.scripted, metrics=None, lifetime=None, reloader=self.reloader
        )
        self.client = httpx.AsyncClient(
            transport=httpx.ASGITransport(self.http.config.app),  # type: ignore[arg-type]
            base_url="http://localhost",
        )

    async def chat(self, **headers: str) -> httpx.Response:
        body = {"messages": [{"role": "user", "content": "Hi"}]}
        return await self.client.post("/v1/chat/completions", json=body, headers=headers)

    async def reload(self, **headers: str) -> dict[str, Any]:
        answer = await self.client.post("/admin/reload", headers=headers)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found


@asynccontextmanager
async def rig(**settings: Any) -> AsyncIterator[Rig]:
    made = Rig(ServerConfig(**settings))
    async with made.client:
        yield made


async def status(one: Rig, **headers: str) -> object:
    return (await one.chat(**headers)).status_code


async def origin(one: Rig) -> object:
    return (await one.chat(origin="https://t.example")).headers.get("access-control-allow-origin")


async def long_body(one: Rig) -> object:
    return (await one.client.post("/v1/completions", json={"prompt": "x" * 2000})).status_code


CASES: dict[str, tuple[Any, Any, Callable[[Rig], Any], object, object]] = {
    "allowed_hosts": ((), ("tide.example",), lambda one: status(one, host="tide.example"), 403, 200),
    "allowed_origins": ((), ("https://t.example",), origin, None, "https://t.example"),
    "api_keys": ((), ("k",), status, 200, 401),
    "max_body_bytes": (8 << 20, 1024, long_body, 200, 413),
}


@pytest.mark.parametrize("name", CASES)
async def test_a_setting_counts_from_the_next_request_on(name: str) -> None:
    before, after, probe, expected, then = CASES[name]

    async with rig(**{name: before}) as one:
        assert await probe(one) == expected
        one.server = replace(one.server, **{name: after})
        assert await one.reload() == {"status": "reloaded", "changed": [name], "needs_restart": []}
        assert await probe(one) == then
        one.server = replace(one.server, **{name: before})
        assert (await one.reload(**ADMIN) if name != "api_keys" else one.reloader.reload()) is not None
        assert await probe(one) == expected


async def test_the_others_of_the_server(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    async with rig() as one:
        one.server = replace(one.server, log_requests=True, log_prompts=True, drain_seconds=7.0, max_wait_seconds=5.0)
        assert set((await one.reload())["changed"]) == {
            "log_requests",
            "log_prompts",
            "drain_seconds",
            "max_wait_seconds",
        }
        await one.chat()
        assert "body" in json.loads(capsys.readouterr().err.splitlines()[-1])
        one.server = replace(one.server, log_requests=False, log_prompts=False)
        await one.reload()
        capsys.readouterr()
        await one.chat()
        assert capsys.readouterr().err == ""
        assert one.http.stop_within(None) == 7.0
        keys = tmp_path / "keys.jsonl"
        keys.write_text("")
        one.server = replace(one.server, keys_file=str(keys), slow_reader_seconds=9.0, metrics_role="admin")
        assert set((await one.reload())["changed"]) == {"keys_file", "slow_reader_seconds", "metrics_role"}
        assert await status(one) == 401
        assert one.reloader.live.now.slow_reader_seconds == 9.0


async def test_a_bound_of_the_wait_counts_from_the_next_request_on() -> None:
    async with rig(max_wait_seconds=0) as one:
        seen: list[float] = []
        one.reloader.live.follow(lambda config: seen.append(config.max_wait_seconds))
        one.server = replace(one.server, max_wait_seconds=1.0)
        await one.reload()
        assert seen == [0, 1.0]


def test_the_log_level() -> None:
    before = logging.getLogger("tidemill").level
    try:
        set_log_level(ServerConfig(log_level="error"))
        assert not logging.getLogger("tidemill.serve").isEnabledFor(logging.WARNING)
        set_log_level(ServerConfig(log_level="debug"))
        assert logging.getLogger("tidemill.serve").isEnabledFor(logging.DEBUG)
    finally:
        logging.getLogger("tidemill").setLevel(before)


def test_settings_of_the_engine_go_to_the_engine_and_stay() -> None:
    one = Rig(ServerConfig())
    one.engine = replace(ENGINE, stuck_seconds=9.0, scheduler=SchedulerConfig(max_waiting=7, prefix_cache_ttl=3.0))
    assert set(one.reloader.reload().changed) == LIVE_ENGINE
    (got,) = one.engine_got
    assert (got.stuck_seconds, got.scheduler.max_waiting, got.scheduler.prefix_cache_ttl) == (9.0, 7, 3.0)
    assert one.reloader.reload() == Reloaded(changed=(), needs_restart=())


async def test_what_cannot_change_is_named_each_time_and_does_not(caplog: pytest.LogCaptureFixture) -> None:
    async with rig() as one:
        one.server = replace(one.server, port=9, max_wait_seconds=1.0)
        one.engine = replace(ENGINE, block_size=32, model=ModelConfig(path="other"))
        found = await one.reload()
        assert found["changed"] == ["max_wait_seconds"]
        assert set(found["needs_restart"]) == {"port", "block_size", "path"}
        assert one.reloader.live.now.port == 8000
        assert one.engine_got == []
        assert set((await one.reload())["needs_restart"]) == {"port", "block_size", "path"}
        assert "only a new process takes up: port" in caplog.text


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"allowed_origins": ("nonsense",)}, "allowed_origins takes scheme"),
        ({"keys_file": "/no/such/file"}, "keys_file /no/such/file cannot be read"),
        ({"api_keys": (" k ",)}, "api_keys must be ASCII"),
    ],
)
async def test_settings_that_cannot_be_leave_all_of_the_old_ones_in_force(
    bad: dict[str, Any], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with rig() as one:
        one.server = replace(one.server, max_wait_seconds=1.0, **bad)
        one.engine = replace(ENGINE, stuck_seconds=9.0)
        answer = await one.client.post("/admin/reload")
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith(f"the settings are as they were: {message}")
        assert (one.reloader.live.now, one.engine_got) == (ServerConfig(), [])
        assert await status(one) == 200
        (line,) = [record.getMessage() for record in caplog.records]
        assert line.startswith(f"the settings are as they were: {message}")
        assert "\n" not in line


async def test_only_an_administrator_and_no_foreign_page_and_only_with_a_file(http: Any) -> None:
    async with rig(api_keys=("k",)) as one:
        assert (await one.client.post("/admin/reload", headers=ADMIN)).status_code == 403
        assert (await one.client.post("/admin/reload")).status_code == 401
    async with rig() as one:
        refused = await one.client.post("/admin/reload", headers={"origin": "https://evil.example"})
        assert refused.status_code == 403
    async with http([]) as served:
        answer = await served.client.post("/admin/reload")
        assert answer.status_code == 404
        assert "--config FILE" in answer.json()["error"]["message"]


def test_every_setting_is_one_or_the_other_and_the_page_lists_those_that_change() -> None:
    server = {item.name for item in fields(ServerConfig)}
    assert server >= LIVE_SERVER
    assert values_of(ENGINE).keys() >= LIVE_ENGINE
    page = (Path(__file__).parents[2] / "docs" / "operation.md").read_text()
    section = page.split("## Changing settings", 1)[1].split("\n## ", 1)[0]
    for name in LIVE_SERVER | LIVE_ENGINE:
        assert f"`{name}`" in section


def test_a_file_of_settings_is_checked_and_its_paths_are_seen_from_its_folder(tmp_path: Path) -> None:
    file = tmp_path / "tide.toml"
    file.write_text('max_running = 3\nmax_body_bytes = "8MiB"\nkeys_file = "keys"\nallowed_hosts = ["a"]\n')
    assert read_config_file(str(file)) == {
        "max_running": 3,
        "max_body_bytes": 8 << 20,
        "keys_file": str(tmp_path / "keys"),
        "allowed_hosts": ("a",),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_runing = 3", "there is no setting max_runing; did you mean max_running?"),
        ("max_running = true", "max_running must be a whole number, not True"),
        ("max_running = ", "is not valid TOML"),
        ("max_body_bytes = '8 beers'", "'8 beers' is not a size"),
        ("path = 'm.gguf'", "there is no setting path"),
        ("[server]\nport = 1", "there is no setting server"),
    ],
)
def test_a_file_that_is_not_right_names_itself_and_the_key(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "tide.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_config_file(str(file))
    assert caught.value.message.startswith(f"{file}: ")
    assert message in caught.value.message


def test_a_server_reads_its_file_again_at_the_signal_and_by_the_route(tmp_path: Path) -> None:
    file = tmp_path / "tide.toml"
    file.write_text('max_waiting = 2\nlog_level = "warning"\n')
    texts = {"input": ["a", "b", "c", "d"]}
    with serving(TINY, tmp_path / "log", "--threads", "1", "--config", str(file)) as server:

        def refused() -> bool:
            return httpx.post(f"{server.url}/v1/embeddings", json=texts, timeout=30).status_code != 200

        assert refused()
        file.write_text("max_waiting = 50\nmax_running = 2\n")
        answer = httpx.post(f"{server.url}/admin/reload", timeout=30)
        assert answer.json() == {"status": "reloaded", "changed": ["max_waiting"], "needs_restart": ["max_running"]}
        assert not refused()
        file.write_text("max_waiting = 'many'")
        assert httpx.post(f"{server.url}/admin/reload", timeout=30).status_code == 400
        assert not refused()
        file.write_text("max_waiting = 2")
        server.process.send_signal(signal.SIGHUP)
        server.wait_for_line("changed: max_waiting", times=2)
        while not refused():
            pass
        assert server.process.poll() is None
    assert "max_waiting must be a whole number" in server.log.read_text()

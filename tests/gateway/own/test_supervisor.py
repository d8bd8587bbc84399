"""Engines that the gateway starts: programs that stand in for them start, crash, hang and are exchanged."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tomllib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.gateway.conftest import Gateway, SkippingClock, before
from tidemill.cli.gateway_restart import exchanged
from tidemill.cli.main import run
from tidemill.core.clock import Clock, ManualClock, SystemClock
from tidemill.core.errors import ConfigError, TidemillError
from tidemill.gateway.config import GatewayConfig, OwnEngineConfig, read_config
from tidemill.gateway.own.group import Group
from tidemill.gateway.own.supervisor import Supervisor

FAKE = Path(__file__).parents[2] / "support" / "fake_engine.py"
CHAT = {"model": "g", "messages": [{"role": "user", "content": "?"}]}


def fake(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, str(FAKE), *arguments]


@asynccontextmanager
async def engines(
    how: str = "", *, clock: Clock | None = None, **fields: Any
) -> AsyncIterator[tuple[Gateway, Supervisor]]:
    own = {"name": "g", "model": "m.gguf", "environment": {"FAKE": how}, **fields.pop("own", {})}
    config = {"engines": [own], "starting": {"backoff_seconds": 0.1, "longest_backoff_seconds": 0.4, "stop_seconds": 2}}
    made: list[Supervisor] = fields.pop("found", [])
    config |= fields

    def supervised(found: GatewayConfig) -> Supervisor:
        made.append(Supervisor(found, clock or SystemClock(), run=fake, every=0.05))
        return made[0]

    async with before([], [], supervised=supervised, **config) as gateway:
        yield gateway, made[0]


def of(supervisor: Supervisor) -> Group:
    return supervisor.groups["g"]


async def test_an_engine_that_was_started_answers() -> None:
    async with engines() as (gateway, supervisor):
        answer = await gateway.client.post("/v1/chat/completions", json=CHAT)
        assert answer.status_code == 200
        assert answer.headers["x-tidemill-replica"] == "g-0"
        (shown,) = (await gateway.client.get("/admin/engines")).json()["engines"]
        assert (shown["wanted"], shown["starts"], shown["crashes"]) == (1, 1, 0)
        assert psutil.pid_exists(shown["engines"][0]["pid"])
        page = (await gateway.client.get("/metrics")).text
        assert 'tidemill_gateway_engines{group="g",state="ready"} 1.0' in page
        (child,) = of(supervisor).children
        pid = child.pid
    assert pid is not None
    assert not psutil.pid_exists(pid), "it ends with the gateway"


async def test_one_that_is_killed_is_replaced_at_once() -> None:
    async with engines() as (gateway, supervisor):
        (child,) = of(supervisor).children
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        await gateway.until(lambda: of(supervisor).crashes == 1)
        soon = await gateway.client.post("/v1/chat/completions", json=CHAT)
        assert soon.status_code in (200, 503)
        await gateway.until(lambda: of(supervisor).count("ready") == 1)
        await gateway.until(lambda: any(one.healthy for one in gateway.fleet.upstreams))
        assert (await gateway.client.post("/v1/chat/completions", json=CHAT)).status_code == 200
        assert of(supervisor).problem.endswith("g-0 ended with code -9: it said nothing")
        (child,) = of(supervisor).children
        assert child.pid is not None
        os.kill(child.pid, signal.SIGTERM)
        await gateway.until(lambda: of(supervisor).crashes == 2)
        assert of(supervisor).problem.startswith("g-0 ended with code 0"), "the newest one's reason"


async def test_one_that_is_let_go_gets_nothing_new_from_that_moment_on() -> None:
    async with engines() as (gateway, supervisor):
        (child,) = of(supervisor).children
        (upstream,) = gateway.fleet.upstreams
        of(supervisor)._let_go(child, {child.name: upstream})
        assert upstream.draining, "before anybody else has had a turn"
        await gateway.until(lambda: child.state == "ended")


async def test_one_that_cannot_start_is_tried_again_more_and_more_seldom_and_says_why() -> None:
    async with engines("crash") as (gateway, supervisor):
        answer = await gateway.client.post("/v1/chat/completions", json=CHAT)
        assert answer.status_code == 503
        assert "out of memory" in answer.json()["error"]["message"]
        assert answer.headers["retry-after"]
        await gateway.until(lambda: of(supervisor).crashes >= 4)
        assert of(supervisor)._not_before - of(supervisor)._clock.now() > 0.2
        (shown,) = supervisor.shown()
        assert "ended with code 1" in shown["problem"]
        assert (await gateway.client.post("/v1/chat/completions", json={**CHAT, "model": "h"})).status_code == 404


async def test_one_that_never_gets_ready_is_ended() -> None:
    clock = SkippingClock()

    async def impatient() -> None:
        while "loading the model" not in [  # noqa: ASYNC110 (it is another process)
            child.last_words for one in found for group in one.groups.values() for child in group.children
        ]:
            await asyncio.sleep(0.005)
        clock.skip(301)

    found: list[Supervisor] = []
    hurrying = asyncio.create_task(impatient())
    async with engines("mute", clock=clock, found=found) as (gateway, supervisor):
        await hurrying
        await gateway.until(lambda: of(supervisor).crashes >= 1)
        assert of(supervisor).problem == "g-0 was not ready within 300 s: loading the model"


async def test_one_that_is_up_and_says_for_long_that_it_is_not_well_is_replaced(tmp_path: Path) -> None:
    cured = tmp_path / "cured"
    own = {"environment": {"FAKE": "wedged", "FAKE_CURED": str(cured)}, "replicas": {"min": 1, "max": 3}}
    clock = SkippingClock()
    async with engines(own=own, clock=clock, probes={"interval_seconds": 0.1}) as (gateway, supervisor):
        (wedged,) = of(supervisor).children
        await gateway.until(lambda: wedged.unwell_since is not None and gateway.fleet.upstreams[0].looked_at)
        clock.skip(290)
        await gateway.client.get("/health")
        assert of(supervisor).children == [wedged]
        clock.skip(20)
        await gateway.until(lambda: of(supervisor).crashes == 1)
        assert of(supervisor).problem == "g-0 was up and not well for 300 s: /ready says 503"
        cured.touch()
        await gateway.until(lambda: any(one.healthy for one in gateway.fleet.upstreams))
        assert wedged not in of(supervisor).children
        assert (await gateway.client.post("/v1/chat/completions", json=CHAT)).status_code == 200


async def test_one_that_is_not_well_hides_no_queue_from_the_autoscaler(monkeypatch: pytest.MonkeyPatch) -> None:
    from tidemill.gateway.routing.replica import Replica

    own = {"replicas": {"min": 2, "max": 3}, "scale": {"queue_seconds": 1.0, "up_after_seconds": 0.2}}
    async with engines(own=own, probes={"interval_seconds": 3600}) as (gateway, supervisor):
        await gateway.until(lambda: len(gateway.fleet.upstreams) == 2)
        await gateway.until(lambda: all(one.healthy for one in gateway.fleet.upstreams))
        idle = gateway.fleet.upstreams[0]
        idle.healthy = False
        monkeypatch.setattr(Replica, "queue_seconds", lambda self, _: 0.0 if self is idle.replica else 5.0)
        await gateway.until(lambda: of(supervisor).count("ready") == 3)


async def test_a_key_of_the_gateways_own_surroundings_is_not_asked_for_by_its_engines(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TIDEMILL_API_KEY", "sk-of-an-administrator")
    monkeypatch.setenv("TIDEMILL_KEYS_FILE", str(tmp_path / "keys"))
    monkeypatch.setenv("TIDEMILL_OTHER", "stays")
    async with engines() as (_, supervisor):
        (child,) = of(supervisor).children
        assert child.pid is not None
        found = psutil.Process(child.pid).environ()
        assert found["TIDEMILL_OTHER"] == "stays"
        assert not {"TIDEMILL_API_KEY", "TIDEMILL_KEYS_FILE"} & found.keys()
        assert os.getsid(child.pid) != os.getsid(0), "Ctrl-C at the terminal is for the gateway"


async def test_paths_of_an_engine_are_seen_from_where_the_gateway_runs() -> None:
    own = OwnEngineConfig.model_validate({"name": "g", "model": "m", "serve": {"chat_template": "night.jinja"}})
    group = Group(own, GatewayConfig().starting, SystemClock(), lambda: None, run=fake)
    *_, file = group._arguments("g-0")
    written = tomllib.loads(Path(file).read_text())  # noqa: ASYNC240
    assert written["chat_template"] == str(Path.cwd() / "night.jinja")
    await group.close()


async def test_the_fewest_of_a_group_are_kept_free_of_the_others_load() -> None:
    own = {"memory_megabytes": 100, "replicas": {"min": 1, "max": 3}}
    limits = {"memory_megabytes": 300}
    async with engines(own=own, limits=limits) as (gateway, supervisor):
        group = of(supervisor)
        assert supervisor._affordable(group) == 3
        groups = [{"name": name, "model": "m.gguf", **own} for name in ("g", "h")]
        supervisor.change(GatewayConfig.model_validate({"engines": groups, "limits": limits}))
        assert not supervisor.groups["h"].children, "it has none yet"
        assert supervisor._affordable(group) == 2
        await gateway.until(lambda: supervisor.groups["h"].count("ready") == 1)


async def test_other_surroundings_exchange_the_engines() -> None:
    async with engines() as (gateway, supervisor):
        (old,) = of(supervisor).children
        own = {"name": "g", "model": "m.gguf", "environment": {"FAKE": "", "MORE": "1"}}
        supervisor.change(GatewayConfig.model_validate({"engines": [own]}))
        await gateway.until(lambda: old not in of(supervisor).children and of(supervisor).count("ready") == 1)


async def test_engines_are_exchanged_one_by_one_and_no_request_fails() -> None:
    once = {"attempts": 1}  # a second attempt would hide what went wrong with the first
    async with engines(own={"replicas": {"min": 2, "max": 2}}, retries=once) as (gateway, supervisor):
        await gateway.until(lambda: of(supervisor).count("ready") == 2)
        first = {child.pid for child in of(supervisor).children}
        most = least = 2
        statuses: list[int] = []

        async def ask() -> None:
            while not done.is_set():
                statuses.append((await gateway.client.post("/v1/chat/completions", json=CHAT)).status_code)

        done = asyncio.Event()
        asking = [asyncio.create_task(ask()) for _ in range(4)]
        answer = await gateway.client.post("/admin/engines/restart")
        assert (answer.status_code, answer.json()["engines"]) == (202, ["g"])
        while first & {child.pid for child in of(supervisor).children}:
            ready = of(supervisor).count("ready")
            most, least = max(most, len(of(supervisor).children)), min(least, ready)
            await asyncio.sleep(0.005)
        done.set()
        await asyncio.gather(*asking)
        assert set(statuses) == {200}
        assert (most, least) == (3, 2)
        assert of(supervisor).crashes == 0
        assert (await gateway.client.post("/admin/engines/restart?engine=no")).status_code == 404


async def test_without_room_for_one_more_the_old_one_goes_first() -> None:
    own = {"replicas": {"min": 2, "max": 2}, "memory_megabytes": 100}
    async with engines(own=own, limits={"memory_megabytes": 250}) as (gateway, supervisor):
        await gateway.until(lambda: of(supervisor).count("ready") == 2)
        first = {child.pid for child in of(supervisor).children}
        supervisor.restart(None)
        while first & {child.pid for child in of(supervisor).children}:
            assert len(of(supervisor).children) <= 2
            await asyncio.sleep(0.005)
        await gateway.until(lambda: of(supervisor).count("ready") == 2)


async def test_the_load_brings_engines_and_lets_them_go(monkeypatch: pytest.MonkeyPatch) -> None:
    scale = {"queue_seconds": 1.0, "up_after_seconds": 0.2, "down_after_seconds": 0.3}
    own = {"replicas": {"min": 1, "max": 3}, "scale": scale}
    async with engines(own=own) as (gateway, supervisor):
        from tidemill.gateway.routing.replica import Replica

        monkeypatch.setattr(Replica, "queue_seconds", lambda *_: 5.0)
        await gateway.until(lambda: of(supervisor).count("ready") == 3)
        await asyncio.sleep(0.5)
        assert len(of(supervisor).children) == 3
        monkeypatch.setattr(Replica, "queue_seconds", lambda *_: 0.0)
        await gateway.until(lambda: len(of(supervisor).children) == 1)
        assert of(supervisor).crashes == 0
        assert (await gateway.client.post("/v1/chat/completions", json=CHAT)).status_code == 200


async def test_other_settings_exchange_the_engines_and_a_group_that_is_gone_ends() -> None:
    async with engines() as (gateway, supervisor):
        (old,) = of(supervisor).children
        own = {"name": "g", "model": "m.gguf", "serve": {"threads": 1}}
        supervisor.change(GatewayConfig.model_validate({"engines": [own]}))
        await gateway.until(lambda: old not in of(supervisor).children and of(supervisor).count("ready") == 1)
        (new,) = of(supervisor).children
        supervisor.change(GatewayConfig.model_validate({}))
        await gateway.until(lambda: new.state == "ended")
        await gateway.until(lambda: not gateway.fleet.upstreams)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("engines: [{name: a, model: m, replicas: {min: 0}}]", "engines.0.replicas.min: "),
        ("engines: [{name: a, model: m, replicas: {min: 3, max: 2}}]", "engines.0.replicas.max: must not be below"),
        ("engines: [{name: a, model: m, serve: {port: 1}}]", "engines.0.serve.port: the gateway chooses it"),
        (
            "engines: [{name: a, model: m, kv_events: true, serve: {kv_events_endpoint: 'tcp://127.0.0.1:1'}}]",
            "engines.0.serve.kv_events_endpoint: with kv_events the gateway chooses it",
        ),
        (
            "engines: [{name: a, model: m, kv_events: true, serve: {prefix_cache: 'off'}}]",
            "engines.0.kv_events: tells of the prefix cache, which serve.prefix_cache turns off",
        ),
        ("engines: [{name: a, model: m, serve: {thread: 1}}]", "did you mean threads"),
        ("engines: [{name: a, model: m, scale: {queue_second: 1}}]", "did you mean queue_seconds?"),
        ("engines: [{name: a, model: m}, {name: a, model: m}]", "engines.1.name: a"),
        ("{engines: [{name: a, model: m}], limits: {memory_megabytes: 1}}", "engines.0.memory_megabytes: "),
        ("{engines: [{name: a, model: m, cost_per_hour: 2}], limits: {cost_per_hour: 1}}", "limits.cost_per_hour: "),
        ("{policy: random}", "replicas: there is neither"),
    ],
)
def test_what_cannot_be_is_refused_by_name(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "g.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        read_config(file)
    assert says in error.value.message


async def test_engines_that_end_while_the_gateway_is_stopping_are_not_started_anew() -> None:
    """They have been told to at the same time, and their end is no crash."""
    async with engines(own={"replicas": {"min": 2, "max": 3}}) as (gateway, supervisor):
        await gateway.until(lambda: of(supervisor).count("ready") == 2)
        gateway.drain.begin()
        for child in of(supervisor).children:
            assert child.pid is not None
            os.kill(child.pid, signal.SIGTERM)
        await gateway.until(lambda: not of(supervisor).children)
        assert (of(supervisor).starts, of(supervisor).crashes, of(supervisor).problem) == (2, 0, "")


async def test_a_command_exchanges_the_engines_and_says_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    async with engines() as (gateway, supervisor):
        (old,) = of(supervisor).children
        url = f"http://127.0.0.1:{gateway.port}"
        assert await asyncio.to_thread(run, ["gateway", "restart", url, "--engine", "g", "--timeout", "60"]) == 0
        (new,) = of(supervisor).children
        assert (new is not old, new.state, old.state) == (True, "ready", "ended")
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith("g: g-0 ready, old")
        assert lines[-1] == f"g: {new.name} ready"
        assert await asyncio.to_thread(run, ["gateway", "restart", url, "--no-wait"]) == 0
        assert capsys.readouterr().out == f"g: being exchanged; {url}/admin/engines says how far it is\n"
        assert await asyncio.to_thread(run, ["gateway", "restart", url, "--engine", "h"]) != 0
        assert capsys.readouterr().err.strip().endswith("there are no engines 'h'; there are g")


def test_a_command_to_a_gateway_that_is_not_there_says_so_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["gateway", "restart", "http://127.0.0.1:1"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "http://127.0.0.1:1" in line
    assert "refused" in line


def test_an_exchange_that_does_not_end_is_waited_for_so_long_and_no_longer() -> None:
    shown = {
        "engines": [{"name": "g", "problem": "out of memory", "engines": [{"name": "g-0", "pid": 7, "state": "ready"}]}]
    }
    clock, lines = ManualClock(), list[str]()
    with pytest.raises(TidemillError, match="within 20 s"):
        exchanged(lambda: shown, shown, ["g"], timeout=20, say=lines.append, now=clock.now, sleep=clock.advance)
    assert clock.now() >= 20
    assert lines == ["g: g-0 ready, old (out of memory)"], "once, and not at every look"

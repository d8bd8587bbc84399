"""What the gateway says of itself, and settings that change while it runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
import yaml

from tests.gateway.conftest import Behind
from tidemill.bench.scripted.script import Script, ScriptedAnswer, Step
from tidemill.bench.scripted.server import ScriptedServer
from tidemill.cli.main import run
from tidemill.core.errors import ConfigError
from tidemill.gateway.app import ENDPOINTS
from tidemill.gateway.config import GatewayConfig, read_config
from tidemill.gateway.fleet import Fleet
from tidemill.gateway.metrics import FLEET_METRICS, GATEWAY_METRICS

GOOD = ScriptedAnswer(steps=(Step(tokens=1, times=2),))


async def test_models_of_all_replicas_are_merged(behind: Behind) -> None:
    async with behind(GOOD, GOOD) as gateway:
        (model,) = (await gateway.client.get("/v1/models")).json()["data"]
        assert (model["id"], model["replicas"]) == ("scripted", ["r0", "r1"])
        assert (await gateway.client.get("/v1/models/scripted")).status_code == 200
        missing = await gateway.chat(model="other")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


async def test_ready_is_what_the_replicas_are_and_health_is_not(behind: Behind) -> None:
    """A dead replica is seen by its own health, whatever its model list said before."""
    async with behind(GOOD, probes={"interval_seconds": 0.05, "failures": 1}) as gateway:
        assert (await gateway.client.get("/ready")).status_code == 200
        await gateway.servers[0].close()
        await gateway.until(lambda: not gateway.fleet.upstreams[0].healthy)
        ready = await gateway.client.get("/ready")
        assert ready.status_code == 503
        assert "r0" in ready.json()["error"]["message"]
        assert (await gateway.client.get("/health")).status_code == 200
        assert (await gateway.chat()).status_code == 503
        await gateway.servers[0].start("127.0.0.1", gateway.ports[0])
        await gateway.until(lambda: gateway.fleet.upstreams[0].healthy)
        assert (await gateway.chat()).status_code == 200


async def test_where_nothing_seems_well_everything_is_tried(behind: Behind) -> None:
    """Looks that fail alone do not stop what works."""
    async with behind(GOOD, GOOD) as gateway:
        for upstream in gateway.fleet.upstreams:
            upstream.healthy = False
        assert (await gateway.chat()).status_code == 200
        gateway.fleet.upstreams[0].healthy = True
        assert {(await gateway.chat()).headers["x-tidemill-replica"] for _ in range(6)} == {"r0"}


async def test_why_a_request_went_where_it_went(behind: Behind) -> None:
    async with behind(ScriptedAnswer(status=500), GOOD, policy="predicted-seconds") as gateway:
        gateway.fleet.upstreams[1].draining = True
        await gateway.client.post("/v1/chat/completions", json={"model": "scripted", "messages": []})
        gateway.fleet.upstreams[1].draining = False
        for _ in range(20):
            answer = await gateway.chat()
            found = (await gateway.client.get(f"/admin/decisions/{answer.headers['x-request-id']}")).json()
            if len(found["attempts"]) == 2:
                break
        first, second = found["attempts"]
        assert (first["replica"], first["outcome"]) == ("r0", "r0 says 500")
        assert set(first["scores"]) == {"r0", "r1"}
        assert {"queue", "prefill", "answer", "cached_tokens"} <= set(first["scores"]["r0"])
        assert (second["replica"], second["outcome"]) == ("r1", "answered")
        assert second["not"] == {"r0": "has been tried"}
        assert found["outcome"] == "answered"
        assert (await gateway.client.get("/admin/decisions/nobody")).status_code == 404


async def test_metrics_have_every_name(behind: Behind) -> None:
    async with behind(GOOD) as gateway:
        await gateway.chat()
        page = (await gateway.client.get("/metrics")).text
    for name in (*(spec.name for spec in GATEWAY_METRICS), *FLEET_METRICS):
        assert f"# HELP {name.removesuffix('_total')}" in page or f"# HELP {name}" in page
    assert 'tidemill_gateway_attempts_total{outcome="answered",replica="r0"} 1.0' in page
    assert 'tidemill_gateway_in_flight{replica="r0"} 0.0' in page
    assert "vllm:" not in page


async def test_replicas_are_shown_without_keys(behind: Behind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICA_KEY", "sk-secret")
    async with behind(GOOD) as gateway:
        upstream = gateway.fleet.upstreams[0]
        upstream.change(upstream.own.model_copy(update={"api_key_env": "REPLICA_KEY"}), gateway.fleet.config)
        await gateway.chat()
        page = (await gateway.client.get("/admin/replicas")).text
        assert gateway.servers[0].seen[0].headers["authorization"] == "Bearer sk-secret"
    assert "secret" not in page
    assert '"name":"r0"' in page


async def test_every_route_is_listed(behind: Behind) -> None:
    async with behind(GOOD) as gateway:
        assert (await gateway.client.get("/")).json()["routes"] == ENDPOINTS


async def test_settings_change_while_requests_run(tmp_path: Path) -> None:
    slow = ScriptedAnswer(steps=(Step(tokens=1), Step(after=0.2, tokens=1)))
    servers = [ScriptedServer(Script(answers=(slow,))) for _ in range(3)]
    ports = [await server.start() for server in servers]
    file = tmp_path / "gateway.yaml"

    def write(*places: int, **more: object) -> None:
        listed = [{"name": f"r{n}", "url": f"http://127.0.0.1:{ports[n]}/v1"} for n in places]
        file.write_text(yaml.safe_dump({"replicas": listed, **more}))

    from tidemill.core.clock import SystemClock
    from tidemill.gateway.server import gateway_server

    write(0, 1)
    fleet = Fleet(read_config(file), SystemClock(), read=lambda: read_config(file))
    server = gateway_server(fleet)
    await fleet.start()
    transport = httpx.ASGITransport(server.config.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        first = asyncio.create_task(client.post("/v1/chat/completions", json={"stream": True, "messages": []}))
        while not any(one.replica.in_flight for one in fleet.upstreams):
            await asyncio.sleep(0.005)
            assert not first.done(), first.result().text
        busy = next(n for n in range(2) if servers[n].seen or fleet.upstreams[n].replica.in_flight)
        kept = fleet.upstreams[1 - busy]
        write(1 - busy, 2, policy="round-robin")
        assert (await client.post("/admin/reload")).json()["replicas"] == [f"r{1 - busy}", "r2"]
        assert fleet.upstreams[0] is kept
        answer = await first
        assert answer.text.endswith("data: [DONE]\n\n")
        assert '"error"' not in answer.text
        file.write_text("replicas: []")
        refused = await client.post("/admin/reload")
        assert refused.status_code == 400
        assert "replicas" in refused.json()["error"]["message"]
        assert [one.name for one in fleet.upstreams] == [f"r{1 - busy}", "r2"]
    await fleet.close()
    for one in servers:
        await one.close()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "replicas: [{name: a, url: 'http://h:1/v1'}]\npolcy: random",
            "there is no setting polcy; did you mean policy?",
        ),
        (
            "replicas: [{name: a, url: 'http://h:1/v1', wieght: 2}]",
            "there is no setting replicas.0.wieght; did you mean weight?",
        ),
        ("replicas: [{name: a, url: 'h:1'}]", "replicas.0.url: must be like http://host:8000/v1"),
        (
            "replicas: [{name: a, url: 'http://h:1/v1', kv_events: 'h:5557'}]",
            "replicas.0.kv_events: must be tcp://HOST:PORT or ipc://PATH, not 'h:5557'",
        ),
        (
            "replicas: [{name: a, url: 'http://h:1/v1', kv_events_replay: 'tcp://h:5558'}]",
            "replicas.0.kv_events_replay: goes with kv_events",
        ),
        ("replicas: [{name: a, url: 'http://u:p@h/v1'}]", "replicas.0.url: must have no password"),
        (
            "replicas: [{name: a, url: 'http://h/v1'}, {name: a, url: 'http://g/v1'}]",
            "replicas.1.name: a is there twice",
        ),
        ("replicas: [{name: a, url: 'http://h/v1', engine: vlm}]", "replicas.0.engine: input should be"),
        ("replicas: []", "replicas: there is neither a replica nor an engine"),
        ("policy: random", "replicas: there is neither"),
        ("replicas: [{name: a, url: 'http://h/v1'}]\npolicy: best", "policy: must be one of predicted-seconds"),
        (
            "replicas: [{name: a, url: 'http://h/v1'}]\nserver: {prot: 1}",
            "there is no setting server.prot; did you mean port?",
        ),
        ("replicas: [{name: a, url: 'http://h/v1'}]\nserver: {port: 99999}", "port must be between 0 and 65535"),
        (
            "replicas: [{name: a, url: 'http://h/v1'}]\nretries: {attempts: 0}",
            "retries.attempts: input should be greater",
        ),
        ("replicas: [{name: a, url: 'http://h/v1'}]\nbreaker: {open_seconds: 90}", "breaker.longest_open_seconds"),
        (
            "replicas: [{name: a, url: 'http://h/v1'}]\ncache: {megabyte: 1}",
            "setting cache.megabyte; did you mean megabytes?",
        ),
        (
            "replicas: [{name: a, url: 'http://h/v1'}]\ncache: {megabytes: 0.5}",
            "cache.entry_megabytes: must not be above",
        ),
        ("a: [", "is not YAML"),
        ("[]", "must be a table"),
    ],
)
def test_mistakes_in_settings_are_one_line_with_the_place(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_config(file)
    assert says in caught.value.message
    assert str(file) in caught.value.message
    assert "\n" not in caught.value.message


def test_a_missing_key_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from tidemill.core.clock import SystemClock

    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    replica = {"name": "a", "url": "http://h/v1", "api_key_env": "NO_SUCH_KEY"}
    with pytest.raises(ConfigError, match="NO_SUCH_KEY"):
        Fleet(GatewayConfig.model_validate({"replicas": [replica]}), SystemClock())


def test_check_looks_at_the_replicas(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text("replicas: [{name: gone, url: 'http://127.0.0.1:1/v1', engine: vllm}]")
    assert run(["gateway", "check", str(file)]) == 0
    out = capsys.readouterr().out
    assert "right; 1 replicas" in out
    assert "/health: " in out
    assert "cache of answers: off" in out
    file.write_text(f"{file.read_text()}\ncache: {{megabytes: 20, ttl_seconds: 60}}")
    assert run(["gateway", "check", str(file)]) == 0
    assert "cache of answers: 20 MB for 60 s" in capsys.readouterr().out
    file.write_text("replicas: []")
    assert run(["gateway", str(file)]) == 2
    assert "replicas" in capsys.readouterr().err


def test_explain_without_a_gateway_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["gateway", "explain", "abc", "--url", "http://127.0.0.1:1"]) == 2
    assert "127.0.0.1:1" in capsys.readouterr().err

"""Replicas that are found: files that change and break, names whose addresses come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.conftest import CHAT, before
from tidemill.bench.scripted.script import Script, ScriptedAnswer, Step
from tidemill.bench.scripted.server import ScriptedServer
from tidemill.core.errors import ConfigError
from tidemill.gateway.config import GatewayConfig, ReplicaConfig, read_config
from tidemill.gateway.discovery.discovery import Discovery
from tidemill.gateway.discovery.listing import read_listing

GOOD = ScriptedAnswer(steps=(Step(tokens=1),))


class Book:
    """Stands in for a resolver."""

    def __init__(self) -> None:
        self.found: list[str] | OSError = []

    async def resolve(self, host: str, port: int) -> list[str]:
        del host, port
        if isinstance(self.found, OSError):
            raise self.found
        return self.found


class Heard:
    """Stands in for a fleet."""

    def __init__(self) -> None:
        self.replicas: Sequence[ReplicaConfig] = []
        self.refuses = False

    def offer(self, replicas: Sequence[ReplicaConfig]) -> list[Any]:
        if self.refuses:
            raise ConfigError("the environment variable KEY is not set", param="api_key_env")
        self.replicas = replicas
        return []

    @property
    def urls(self) -> list[str]:
        return [one.url for one in self.replicas]


def config(**place: Any) -> GatewayConfig:
    return GatewayConfig.model_validate({"discovery": [{"interval_seconds": 3600, **place}]})


async def test_each_address_of_a_name_is_a_replica() -> None:
    book, heard = Book(), Heard()
    found = config(dns="engines", port=8000, engine="vllm", labels={"zone": "a"})
    discovery = Discovery(found, resolve=book.resolve)
    book.found = ["10.0.0.1", "fd00::2"]
    await discovery.start(heard.offer)
    assert heard.urls == ["http://10.0.0.1:8000/v1", "http://[fd00::2]:8000/v1"]
    assert [one.name for one in heard.replicas] == ["10.0.0.1-8000", "fd00-2-8000"]
    assert {one.engine for one in heard.replicas} == {"vllm"}
    assert heard.replicas[0].labels == {"zone": "a"}
    (place,) = found.discovery
    book.found = ["10.0.0.3"]
    await discovery.look(place)
    assert heard.urls == ["http://10.0.0.3:8000/v1"]
    await discovery.close()


@pytest.mark.parametrize("trouble", [OSError(-3, "Temporary failure in name resolution"), []])
async def test_what_cannot_be_looked_up_leaves_what_was_known(trouble: Any, caplog: pytest.LogCaptureFixture) -> None:
    book, heard = Book(), Heard()
    found = config(dns="engines", port=8000)
    discovery = Discovery(found, resolve=book.resolve)
    book.found = ["10.0.0.1"]
    await discovery.start(heard.offer)
    (place,) = found.discovery
    book.found = trouble
    for _ in range(3):
        await discovery.look(place)
    assert heard.urls == ["http://10.0.0.1:8000/v1"]
    assert caplog.text.count("what was known stays") == 1
    assert discovery.shown()[0]["problem"]
    book.found = ["10.0.0.1"]
    await discovery.look(place)
    assert discovery.shown()[0]["problem"] is None
    await discovery.close()


async def test_a_gateway_follows_a_file_and_a_broken_one_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "replicas.yaml"
    servers = [ScriptedServer(Script(answers=(GOOD,))) for _ in range(2)]
    ports = [await server.start() for server in servers]
    file.write_text(f"- {{name: a, url: 'http://127.0.0.1:{ports[0]}/v1'}}")
    place = {"file": str(file), "interval_seconds": 0.02}
    async with before([], [], discovered=True, discovery=[place]) as gateway:

        async def asked() -> str:
            answer = await gateway.client.post("/v1/chat/completions", json=CHAT)
            assert answer.status_code == 200
            return answer.headers["x-tidemill-replica"]

        assert await asked() == "a"
        _write(file, f'[{{"targets": ["127.0.0.1:{ports[1]}"], "labels": {{"zone": "b", "weight": 2}}}}]')
        await gateway.until(lambda: [one.name for one in gateway.fleet.upstreams] == [f"127.0.0.1-{ports[1]}"])
        (now,) = gateway.fleet.upstreams
        assert (now.own.labels, now.own.weight) == ({"zone": "b"}, 2.0)
        await gateway.until(lambda: now.healthy)
        assert await asked() == f"127.0.0.1-{ports[1]}"
        for broken in (
            "- {name: a",
            "nothing",
            "- {name: a, urll: x}",
            "- 2001-99-99",
            "[" * 5000,
            "- {name: a, url: 'ftp://x'}",
        ):
            _write(file, broken)
            discovery = gateway.fleet.discovery
            assert discovery is not None
            await discovery.look(discovery.places[0])
            assert await asked() == f"127.0.0.1-{ports[1]}"
        shown = (await gateway.client.get("/admin/replicas")).json()["discovery"][0]
        assert "url: must be like" in shown["problem"]
        page = (await gateway.client.get("/metrics")).text
        assert f'tidemill_gateway_discovery_up{{place="{file}"}} 0.0' in page
        file.unlink()
        assert await asked() == f"127.0.0.1-{ports[1]}"
    for server in servers:
        await server.close()


def _write(file: Path, text: str) -> None:
    """As those who change files under readers should: none of them sees half of it."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


async def test_looking_goes_on_whatever_happens(caplog: pytest.LogCaptureFixture) -> None:
    heard = Heard()
    found: list[list[str]] = [["10.0.0.1"]]

    async def resolve(host: str, port: int) -> list[str]:
        del host, port
        if not found:
            raise RuntimeError("a mistake of ours")
        return found[0]

    discovery = Discovery(config(dns="engines", port=8000, interval_seconds=0.01), resolve=resolve)
    await discovery.start(heard.offer)
    found.clear()
    while not discovery.shown()[0]["problem"]:  # noqa: ASYNC110 (nothing else tells)
        await asyncio.sleep(0.001)
    found.append(["10.0.0.2"])
    while heard.urls != ["http://10.0.0.2:8000/v1"]:  # noqa: ASYNC110 (nothing else tells)
        await asyncio.sleep(0.001)
    assert "a mistake of ours" in caplog.text
    await discovery.close()


async def test_a_key_that_is_not_there_leaves_what_was_known() -> None:
    book, heard = Book(), Heard()
    found = config(dns="engines", port=8000)
    discovery = Discovery(found, resolve=book.resolve)
    book.found = ["10.0.0.1"]
    await discovery.start(heard.offer)
    heard.refuses, book.found = True, ["10.0.0.2"]
    await discovery.look(found.discovery[0])
    assert "KEY is not set" in discovery.shown()[0]["problem"]
    assert discovery.shown()[0]["replicas"] == ["10.0.0.1-8000"]
    await discovery.close()


async def test_a_model_that_may_be_where_nothing_was_found_is_not_unknown() -> None:
    book = Book()
    found = config(dns="engines", port=8000, models=["m"])
    discovery = Discovery(found, resolve=book.resolve)
    await discovery.start(Heard().offer)
    assert "no replicas were found" in discovery.expects("m")
    assert discovery.expects("n") == ""
    await discovery.close()


async def test_other_places_are_looked_at_after_a_reload() -> None:
    book, heard = Book(), Heard()
    discovery = Discovery(config(dns="a", port=1), resolve=book.resolve)
    book.found = ["10.0.0.1"]
    await discovery.start(heard.offer)
    discovery.change(config(dns="b", port=2))
    while heard.urls != ["http://10.0.0.1:2/v1"]:  # noqa: ASYNC110 (nothing else tells)
        await asyncio.sleep(0.001)
    await discovery.close()


def test_a_list_of_targets_that_is_wrong_says_where(tmp_path: Path) -> None:
    file = tmp_path / "sd.json"
    file.write_text('[{"targets": ["a:1", "a:1"]}]')
    with pytest.raises(ConfigError, match="a-1 is there twice"):
        read_listing(file, {})
    file.write_text('[{"targets": ["a:x"]}]')
    with pytest.raises(ConfigError, match="url: must be like"):
        read_listing(file, {})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("discovery: [{}]", "discovery.0: needs either file or dns"),
        ("discovery: [{dns: a}]", "discovery.0.port: goes with dns"),
        ("discovery: [{file: a, dns: b, port: 1}]", "discovery.0: needs either"),
        ("{discovery: [{file: a}], pins: [{tenant: t}]}", "pins.0: needs replicas or labels"),
    ],
)
def test_what_cannot_be_is_refused_by_name(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "g.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        read_config(file)
    assert says in error.value.message

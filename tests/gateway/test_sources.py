"""Replicas that come from elsewhere than the file: offered, taken out of use, taken back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tests.gateway.conftest import CHAT, Behind, Gateway
from tidemill.bench.scripted.script import Script, ScriptedAnswer, Step
from tidemill.bench.scripted.server import ScriptedServer
from tidemill.core.clock import SystemClock
from tidemill.core.errors import ConfigError
from tidemill.gateway.config import GatewayConfig, ReplicaConfig
from tidemill.gateway.fleet import Fleet
from tidemill.gateway.replica_source import Offer

SLOW = ScriptedAnswer(steps=(Step(tokens=1), Step(after=0.2, tokens=1)))
GOOD = ScriptedAnswer(steps=(Step(tokens=1),))


class Scripted:
    """Implements ReplicaSource."""

    name = "elsewhere"

    def __init__(self) -> None:
        self.offer: Offer | None = None
        self.refuses = False
        self.changed: list[GatewayConfig] = []
        self.closed = False

    async def start(self, offer: Offer) -> None:
        self.offer = offer
        offer([replica("s0", 1)])

    async def close(self) -> None:
        self.closed = True

    def check(self, config: GatewayConfig) -> None:
        del config
        if self.refuses:
            raise ConfigError("elsewhere: no", param="elsewhere")

    def change(self, config: GatewayConfig) -> None:
        self.changed.append(config)


def replica(name: str, port: int, **more: object) -> ReplicaConfig:
    return ReplicaConfig.model_validate({"name": name, "url": f"http://127.0.0.1:{port}/v1", **more})


def config(*replicas: ReplicaConfig) -> GatewayConfig:
    return GatewayConfig(replicas=replicas)


def names(gateway: Gateway | Fleet) -> Sequence[str]:
    fleet = gateway if isinstance(gateway, Fleet) else gateway.fleet
    return [one.name for one in fleet.upstreams]


async def test_what_is_offered_gets_requests_at_once_and_what_is_taken_back_ends_what_it_has(behind: Behind) -> None:
    slow = ScriptedServer(Script(answers=(SLOW,)))
    port = await slow.start()
    async with behind(GOOD, probes={"interval_seconds": 3600}) as gateway:
        (offered,) = gateway.fleet.offer("elsewhere", [replica("s0", port)])
        await gateway.until(lambda: offered.healthy)  # looked at, though the next look at the others is far away
        while not offered.replica.in_flight:
            running = asyncio.create_task(gateway.chat())
            await gateway.until(lambda running=running: running.done() or offered.replica.in_flight > 0)
        assert gateway.fleet.offer("elsewhere", []) == []
        assert names(gateway) == ["r0"]
        for _ in range(3):
            assert (await gateway.chat()).headers["x-tidemill-replica"] == "r0"
        answer = await running
        assert answer.headers["x-tidemill-replica"] == "s0"
        assert answer.text.endswith("data: [DONE]\n\n")
        assert '"error"' not in answer.text
        async with asyncio.timeout(20):
            await offered.idle()
    await slow.close()


async def test_one_that_is_offered_as_draining_stays_and_gets_nothing_new(behind: Behind) -> None:
    other = ScriptedServer(Script(answers=(GOOD,)))
    port = await other.start()
    async with behind(GOOD) as gateway:
        (first,) = gateway.fleet.offer("elsewhere", [replica("s0", port)])
        await gateway.until(lambda: first.healthy)
        (again,) = gateway.fleet.offer("elsewhere", [replica("s0", port, drain=True)])
        assert again is first
        for _ in range(4):
            assert (await gateway.chat()).headers["x-tidemill-replica"] == "r0"
        gateway.fleet.offer("elsewhere", [replica("s0", port)])
        assert {(await gateway.chat()).headers["x-tidemill-replica"] for _ in range(4)} == {"r0", "s0"}
    await other.close()


async def test_without_any_replica_a_request_is_refused_and_none_is_lost_when_one_comes(behind: Behind) -> None:
    async with behind(GOOD) as gateway:
        own = gateway.fleet.upstreams[0].own
        gateway.fleet.offer("the file", [])
        refused = await gateway.client.post("/v1/chat/completions", json=CHAT)
        assert refused.status_code == 404
        assert (await gateway.client.get("/ready")).status_code == 503
        gateway.fleet.offer("the file", [own])
        await gateway.until(lambda: gateway.fleet.upstreams[0].healthy)
        assert (await gateway.chat()).status_code == 200


async def test_a_source_starts_ends_and_reloads_with_the_fleet() -> None:
    source = Scripted()
    read = [config(replica("r0", 1))]
    fleet = Fleet(read[0], SystemClock(), read=lambda: read[0], sources=[source])
    await fleet.start()
    assert names(fleet) == ["r0", "s0"]
    assert all(one.looked_at for one in fleet.upstreams), "what is there at the start is looked at before it ends"
    theirs = fleet.upstreams[1]
    read[0] = config(replica("r1", 1))
    source.refuses = True
    with pytest.raises(ConfigError, match="elsewhere: no"):
        fleet.reload()
    assert names(fleet) == ["r0", "s0"]
    assert source.changed == []
    source.refuses = False
    fleet.reload()
    assert names(fleet) == ["r1", "s0"]
    assert fleet.upstreams[1] is theirs
    assert source.changed == read
    await fleet.close()
    assert source.closed


async def test_of_two_with_one_name_the_files_counts(caplog: pytest.LogCaptureFixture) -> None:
    fleet = Fleet(config(replica("r0", 1)), SystemClock())
    offered = fleet.offer("elsewhere", [replica("r0", 2), replica("s0", 3)])
    assert [one.name for one in offered] == ["s0"]
    assert [one.own.url for one in fleet.upstreams] == ["http://127.0.0.1:1/v1", "http://127.0.0.1:3/v1"]
    assert "elsewhere: there is a replica r0 already; that at http://127.0.0.1:2/v1 is left out" in caplog.text
    await fleet.close()

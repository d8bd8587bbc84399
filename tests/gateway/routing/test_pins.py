"""Tenants with replicas of their own."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.gateway.conftest import CHAT, Behind
from tidemill.bench.scripted.script import ScriptedAnswer, Step
from tidemill.gateway.routing.pins import Pin, Pins
from tidemill.serve.access.key_file import new_key

GOOD = ScriptedAnswer(steps=(Step(tokens=1),))


def test_who_may_go_where() -> None:
    pins = Pins(
        [
            Pin(tenant="gold", labels={"tier": "fast"}, reserved=True),
            Pin(tenant="tin", replicas=("c",), labels={}),
        ]
    )
    fast, slow = {"tier": "fast", "zone": "a"}, {"tier": "slow"}
    assert pins.bar("tenant:gold", "a", fast) == ""
    assert pins.bar("tenant:gold", "b", slow) == "is not one of the tenant's replicas"
    assert pins.bar("tenant:silver", "a", fast) == "is reserved for another tenant"
    assert pins.bar("tenant:silver", "b", slow) == ""
    assert pins.bar("key:tin", "c", slow) == ""
    assert pins.bar("tenant:tin", "a", fast) != ""
    assert pins.bar("", "c", slow) == "", "others may use what is not reserved"
    assert Pins([]).bar("tenant:gold", "a", {}) == ""


async def test_a_tenant_without_its_replica_is_not_given_anothers(behind: Behind, tmp_path: Path) -> None:
    keys = tmp_path / "keys.jsonl"
    pairs = {tenant: new_key(tenant, tenant=tenant) for tenant in ("gold", "tin")}
    keys.write_text("".join(json.dumps(asdict(record)) + "\n" for _, record in pairs.values()))
    keys.chmod(0o600)
    made = {tenant: key for tenant, (key, _) in pairs.items()}
    pins = [{"tenant": "gold", "replicas": ["r1"], "reserved": True}]
    async with behind(GOOD, GOOD, pins=pins, server={"keys_file": str(keys)}) as gateway:

        async def asked(tenant: str) -> Any:
            headers = {"authorization": f"Bearer {made[tenant]}"}
            return await gateway.client.post("/v1/chat/completions", json=CHAT, headers=headers)

        assert {(await asked("gold")).headers["x-tidemill-replica"] for _ in range(6)} == {"r1"}
        assert {(await asked("tin")).headers["x-tidemill-replica"] for _ in range(6)} == {"r0"}
        gateway.fleet.upstreams[1].draining = True
        answer = await asked("gold")
        assert answer.status_code == 503
        assert "r0 is not one of the tenant's replicas" in answer.json()["error"]["message"]

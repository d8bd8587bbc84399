"""Two engines of ours behind the gateway: a prompt goes where its blocks are, whatever was sent where."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.gateway.conftest import before
from tidemill.core.clock import SystemClock
from tidemill.gateway.own.supervisor import Supervisor

pytest.importorskip("zmq", reason="the extra kv-events is not installed")

TINY = Path(__file__).parents[2] / "golden" / "data" / "grouped_tied"
PROMPT = [3 + n % 50 for n in range(100)]


@pytest.mark.parametrize("listens", [True, False])
async def test_it_goes_where_the_blocks_are(listens: bool) -> None:
    own = {
        "name": "g",
        "model": str(TINY),
        "serve": {"threads": 1},
        "replicas": {"min": 2, "max": 2},
        "kv_events": listens,
    }
    async with before(
        [],
        [],
        supervised=lambda config: Supervisor(config, SystemClock(), every=0.05),
        engines=[own],
        policy="prefix-aware",
    ) as gateway:
        body = {"model": "g", "prompt": PROMPT, "max_tokens": 1}
        upstreams = gateway.fleet.upstreams
        await gateway.until(lambda: len(upstreams) == 2 and all(one.healthy for one in upstreams))
        if listens:
            await gateway.until(
                lambda: all(one.replica.told is not None and one.replica.told.complete for one in upstreams)
            )
        first = await gateway.client.post("/v1/completions", json=body)
        assert first.status_code == 200, first.text
        sent_to = first.headers["x-tidemill-replica"]
        (had,) = [one for one in upstreams if one.name == sent_to]
        (other,) = [one for one in upstreams if one.name != sent_to]
        async with httpx.AsyncClient(trust_env=False, timeout=20) as client:
            # Behind the gateway's back: one is told to forget, and the other is asked by somebody else.
            await client.post(f"{had.own.url}/cache/reset")
            await client.post(f"{other.own.url}/completions", json=body)
        if listens:
            told = other.replica.told, had.replica.told
            await gateway.until(lambda: bool(told[0]) and not told[1])
        second = await gateway.client.post("/v1/completions", json=body)
        assert second.headers["x-tidemill-replica"] == (other.name if listens else had.name)
        cached = second.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert (cached > 0) == listens
        decision = (await gateway.client.get(f"/admin/decisions/{second.headers['x-request-id']}")).json()
        assert decision["attempts"][0]["prefix_source"] == ("precise" if listens else "approximate")

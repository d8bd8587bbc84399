"""Adapters over HTTP, on a real engine process: named as models, loaded and unloaded by an administrator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from tidemill.core.config import EngineConfig, ExecutorConfig, ModelConfig, ServerConfig
from tidemill.core.errors import SetupError
from tidemill.engine.client import ProcessEngine
from tidemill.engine.factory import build_loop
from tidemill.frontend.model_text import ModelText
from tidemill.models.loading import load_text_source
from tidemill.serve.app import make_app
from tidemill.serve.launch import LaunchedBackend
from tidemill.serve.metrics import PrometheusMetrics

DATA = Path(__file__).parents[1] / "golden" / "data"
ADAPTERS = {name: str(DATA / f"lora_{name}") for name in ("attention", "all", "layer")}
PROMPT = "The tide comes twice a day"


@asynccontextmanager
async def served(*, config: ServerConfig | None = None, **model: object) -> AsyncIterator[httpx.AsyncClient]:
    """A server over the tiny model; named adapters are ``lora``'s."""
    base = ModelConfig(path=str(DATA / "grouped_tied"), name="tiny", **model)  # type: ignore[arg-type]
    engine = ProcessEngine(EngineConfig(model=base, executor=ExecutorConfig(threads=1, packed_cache="off")))
    metrics = PrometheusMetrics()
    backend = LaunchedBackend(
        engine, ModelText.from_source(load_text_source(base.path)), model="tiny", recorder=metrics
    )
    await backend.start()
    app = make_app(backend, config or ServerConfig(), engine=engine, adapters=engine, metrics=metrics)
    try:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            client.engine = engine  # type: ignore[attr-defined]
            yield client
    finally:
        await backend.close()


async def said(client: httpx.AsyncClient, model: str) -> str:
    body = {"model": model, "prompt": PROMPT, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    answer = await client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == model
    return str(answer.json()["choices"][0]["text"])


async def test_adapters_are_models_and_come_and_go() -> None:
    async with served(lora=(f"one={ADAPTERS['attention']}",), max_loras=2) as client:
        listed = (await client.get("/v1/models")).json()["data"]
        assert [entry["id"] for entry in listed] == ["tiny", "one"]
        assert "parent" not in listed[0]
        assert (listed[1]["parent"], listed[1]["root"]) == ("tiny", ADAPTERS["attention"])
        plain, one = await said(client, "tiny"), await said(client, "one")
        load = {"lora_name": "two", "lora_path": ADAPTERS["all"]}
        answer = await client.post("/v1/load_lora_adapter", json=load)
        assert (answer.status_code, answer.text) == (200, "Success: LoRA adapter 'two' added successfully.")
        assert (await client.get("/v1/models/two")).json()["parent"] == "tiny"
        together = await asyncio.gather(*(said(client, name) for name in ("two", "tiny", "one", "two")))
        assert together[1:3] == [plain, one]
        assert together[0] == together[3]
        assert len({plain, one, together[0]}) == 3
        page = (await client.get("/metrics")).text
        assert 'tidemill_engine_adapter_sequences{adapter="two",state="running"} 0.0' in page
        assert 'vllm:lora_requests_info{max_lora="2",running_lora_adapters="",waiting_lora_adapters=""} 1.7' in page
        answer = await client.post("/v1/unload_lora_adapter", json={"lora_name": "two"})
        assert (answer.status_code, answer.text) == (200, "Success: LoRA adapter 'two' removed successfully.")
        for name in ("two", "three"):
            refused = await client.post("/v1/completions", json={"model": name, "prompt": PROMPT})
            assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
        assert (await client.get("/v1/models/two")).status_code == 404


BAD = [
    ({"lora_name": "one", "lora_path": ADAPTERS["all"]}, 400, "lora_name", "there is a model 'one' already"),
    ({"lora_name": "tiny", "lora_path": ADAPTERS["all"]}, 400, "lora_name", "there is a model 'tiny' already"),
    ({"lora_name": "x", "lora_path": "/nowhere"}, 400, "lora_path", "there is no such folder"),
    ({"lora_name": "x", "lora_path": str(DATA / "lora_merged")}, 400, "lora_path", "no linear layer of tiny"),
    ({"lora_name": "", "lora_path": ADAPTERS["all"]}, 400, "lora_name", "1 to 256 printable characters"),
    ({"lora_name": "x"}, 400, "lora_path", "lora_path"),
    ({"lora_name": "x", "lora_path": 3}, 400, "lora_path", "lora_path"),
    ({"lora_name": "x", "lora_path": "y", "load_inplace": True}, 400, "load_inplace", "load_inplace"),
    ({"lora_name": "x", "lora_path": "y", "lora": 1}, 400, "lora", "there is no field"),
]


async def test_what_cannot_be_loaded_is_refused_and_changes_nothing() -> None:
    async with served(lora=(f"one={ADAPTERS['attention']}",), max_loras=2) as client:
        for body, status, param, message in BAD:
            answer = await client.post("/v1/load_lora_adapter", json=body)
            error = answer.json()["error"]
            assert (answer.status_code, error["param"]) == (status, param), error
            assert message in error["message"]
        gone = await client.post("/v1/unload_lora_adapter", json={"lora_name": "x"})
        assert (gone.status_code, gone.json()["error"]["param"]) == (404, "lora_name")
        names = [entry["id"] for entry in (await client.get("/v1/models")).json()["data"]]
        assert names == ["tiny", "one"]
        await client.post("/v1/load_lora_adapter", json={"lora_name": "two", "lora_path": ADAPTERS["all"]})
        full = await client.post("/v1/load_lora_adapter", json={"lora_name": "x", "lora_path": ADAPTERS["layer"]})
        assert full.json()["error"]["message"] == "2 adapters are loaded; max_loras allows 2"


async def test_only_an_administrator_changes_them_and_nobody_where_they_are_off(tmp_path: Path) -> None:
    async with served(config=ServerConfig(api_keys=("user",))) as client:
        headers = {"authorization": "Bearer user"}
        for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
            assert (await client.post(path, json={"lora_name": "x"})).status_code == 401
            assert (await client.post(path, json={"lora_name": "x"}, headers=headers)).status_code == 403
    async with served() as client:
        foreign = {"origin": "https://elsewhere.example"}
        body = {"lora_name": "x", "lora_path": str(tmp_path)}
        assert (await client.post("/v1/load_lora_adapter", json=body, headers=foreign)).status_code == 403
        off = await client.post("/v1/load_lora_adapter", json=body)
        assert (off.status_code, off.json()["error"]["message"]) == (
            400,
            "adapters are off: start the server with --max-loras",
        )
        assert "lora_requests_info" not in (await client.get("/metrics")).text


async def test_an_engine_that_is_started_again_has_the_adapters_of_then() -> None:
    """Loaded ones, and not those that were unloaded."""
    async with served(lora=(f"one={ADAPTERS['attention']}",), max_loras=2) as client:
        await client.post("/v1/load_lora_adapter", json={"lora_name": "two", "lora_path": ADAPTERS["all"]})
        before = await said(client, "two")
        await client.post("/v1/unload_lora_adapter", json={"lora_name": "one"})
        engine: ProcessEngine = client.engine  # type: ignore[attr-defined]
        assert engine.pid is not None
        first = engine.pid
        psutil.Process(first).kill()
        async with asyncio.timeout(60):
            while engine.pid in (None, first) or await engine.ready() is not None:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert await said(client, "two") == before
        refused = await client.post("/v1/completions", json={"model": "one", "prompt": PROMPT})
        assert refused.status_code == 404


@pytest.mark.parametrize(
    ("model", "lora", "said"),
    [
        ("grouped_tied", "x=/nowhere", "/nowhere: there is no such folder"),
        ("grouped_tied", f"tiny={ADAPTERS['all']}", "lora: there is a model 'tiny' already"),
        ("bert", f"x={ADAPTERS['all']}", "adapters are for models that generate"),
    ],
)
def test_settings_that_cannot_be(model: str, lora: str, said: str) -> None:
    config = EngineConfig(model=ModelConfig(path=str(DATA / model), name="tiny", lora=(lora,)))
    with pytest.raises(SetupError) as refused:
        build_loop(config)
    assert said in refused.value.message

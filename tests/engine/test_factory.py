"""From a configuration to answers: a tiny model, loaded as a server would load it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.engine.scripted import run, tokens
from tidemill.core.config import EngineConfig, ExecutorConfig, ModelConfig, SchedulerConfig
from tidemill.core.errors import ConfigError, DoesNotFit, ModelLoadError
from tidemill.core.sampling import SamplingOptions
from tidemill.core.tokens import EngineInfo, TokenRequest
from tidemill.engine.client import ProcessEngine
from tidemill.engine.factory import build_loop
from tidemill.graph.graph import Attention
from tidemill.graph.kv_format import KvFormat
from tidemill.models.loading import load_model

FOLDER = Path(__file__).parents[1] / "golden" / "data" / "grouped_tied"


def config(**engine: object) -> EngineConfig:
    exact = ExecutorConfig(numerics="exact", threads=1)
    made = EngineConfig(model=ModelConfig(path=str(FOLDER)), executor=exact, strict=True)
    return replace(made, **engine)  # type: ignore[arg-type]


def golden() -> list[tuple[TokenRequest, list[int]]]:
    """Prompts, and the greedy tokens that transformers gives for them."""
    expected: Mapping[str, np.ndarray] = np.load(FOLDER / "expected.npz")  # type: ignore[type-arg]
    pairs = []
    for i in range(sum(key.startswith("prompt") for key in expected)):
        greedy = expected[f"f32_greedy{i}"].tolist()
        sampling = SamplingOptions(temperature=0.0, max_tokens=len(greedy), ignore_eos=True)
        pairs.append(
            (TokenRequest(request_id=f"r{i}", prompt=expected[f"prompt{i}"].tolist(), sampling=sampling), greedy)
        )
    return pairs


@pytest.mark.parametrize("executor", ["native", "reference"])
def test_progress_grows_with_each_part_of_a_step_and_with_nothing_else(executor: str) -> None:
    loop = build_loop(config(executor=replace(config().executor, executor=executor)))
    (asked, _), *_ = golden()
    loop.add(asked)
    parts = set()
    for _ in range(3):
        before = loop.progress
        loop.step()
        parts.add(loop.progress - before)
    loop.close()
    (count,) = parts
    assert count > 10


@pytest.mark.parametrize("executor", ["native", "reference"])
@pytest.mark.parametrize(
    "scheduler",
    [
        SchedulerConfig(),
        SchedulerConfig(max_step_tokens=5),
        SchedulerConfig(policy="static", max_running=2),
        SchedulerConfig(policy="dynamic", batch_size=2, batch_wait=0.01),
    ],
    ids=["default", "chunks of 5", "static", "dynamic"],
)
def test_greedy_answers_are_those_of_transformers(executor: str, scheduler: SchedulerConfig) -> None:
    settings = replace(config().executor, executor=executor)
    loop = build_loop(config(executor=settings, scheduler=scheduler))
    answers = run(loop, *(asked for asked, _ in golden()))
    loop.close()
    assert {name: tokens(deltas) for (name, _), deltas in answers.items()} == {
        asked.request_id: greedy for asked, greedy in golden()
    }


def test_the_loop_says_what_it_is() -> None:
    loop = build_loop(config(block_size=32, kv_memory=2**20))
    info: EngineInfo = loop.info
    loop.close()
    assert (info.model, info.vocab_size) == ("grouped_tied", 96)
    assert info.kv_capacity_tokens % 32 == 0
    assert info.max_model_len <= info.kv_capacity_tokens
    assert info.executor.startswith("native: ")
    assert loop.stats().kv_block_size == 32


@pytest.mark.parametrize(
    ("changes", "error", "param"),
    [
        ({"block_size": 24}, ConfigError, "block_size"),
        ({"model": ModelConfig(path=str(FOLDER / "nothing.gguf"))}, ModelLoadError, None),
        ({"kv_memory": 1}, DoesNotFit, "kv_memory"),
        ({"scheduler": SchedulerConfig(max_running=0)}, ConfigError, "max_running"),
    ],
)
async def test_what_cannot_be_built_is_the_same_error_here_and_from_the_process(
    changes: dict[str, object], error: type[Exception], param: str | None
) -> None:
    with pytest.raises(error) as here:
        build_loop(config(**changes))
    engine = ProcessEngine(config(**changes))
    with pytest.raises(error) as there:
        await engine.start()
    await engine.close()
    assert str(there.value) == str(here.value)
    if param is not None:
        assert there.value.param == param  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("window", "num_blocks", "length", "capacity"),
    # The model was made for 512 tokens. A window of 40 lies in at most 4 blocks, with a step of 16 tokens in 5.
    [(None, 5, 80, 80), (40, 5, 512, 512), (40, 3, 48, 48)],
)
def test_a_window_that_fits_its_pool_leaves_the_length_to_the_model(
    monkeypatch: pytest.MonkeyPatch, window: int | None, num_blocks: int, length: int, capacity: int
) -> None:
    model = load_model(config().model)
    (group,) = model.graph.kv_groups
    nodes = (replace(node, window=window) if isinstance(node, Attention) else node for node in model.graph.nodes)
    graph = replace(model.graph, nodes=tuple(nodes), kv_groups=(replace(group, window=window),))
    monkeypatch.setattr("tidemill.models.loading.load_model", lambda _: replace(model, graph=graph))
    memory = num_blocks * 16 * group.bytes_per_token(KvFormat.F32)
    loop = build_loop(config(kv_memory=memory, scheduler=SchedulerConfig(max_step_tokens=16)))
    loop.close()
    assert loop.stats().kv_blocks_total == num_blocks
    assert (loop.info.max_model_len, loop.info.kv_capacity_tokens) == (length, capacity)

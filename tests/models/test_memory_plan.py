"""The memory planner on a model whose numbers can be worked out by hand.

Two layers, two KV heads of size 8: a token's KV is 2 x 2 x 2 x 8 x 2 = 128 bytes in f16, a block of 16 tokens 2048.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tidemill.core.config import ModelConfig
from tidemill.core.errors import ConfigError, DoesNotFit, ModelLoadError
from tidemill.core.settings import engine_config
from tidemill.graph.formats import WeightFormat
from tidemill.graph.passes.fuse import fuse
from tidemill.models import memory_plan
from tidemill.models.fields import Fields
from tidemill.models.loading import load_model
from tidemill.models.loading.stored import StoredTensor
from tidemill.models.memory_plan import MemoryPlan, format_bytes, plan_memory, reserve_bytes
from tidemill.models.registry import build_graph
from tidemill.models.shape import ModelShape, read_shape

MIB = 2**20
CONFIG = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
}
PARAMETERS = 100 * 32 + 2 * (32 * 32 * 2 + 32 * 16 * 2 + 3 * 32 * 64 + 2 * 32) + 32
TOKEN = 128
BLOCK = 16 * TOKEN
SEQUENCE = 16 * BLOCK
"""256 tokens."""


def shape(**changes: int) -> ModelShape:
    graph = build_graph(Fields({**CONFIG, **changes}, "tiny"))
    formats = {spec.name: WeightFormat.F32 for spec in graph.weights}
    return ModelShape(name="tiny", graph=graph, formats=formats, max_position=256)


def plan(available: int = 1024 * MIB, **settings: Any) -> MemoryPlan:
    return plan_memory(shape(), engine_config("tiny", settings), available)


def floor() -> int:
    """The least memory that leaves nothing for KV: reserve, packed weights and workspace."""
    p = plan()
    return 128 * MIB + p.packed + p.workspace


def test_with_memory_in_plenty_demand_decides() -> None:
    p = plan(max_running=8)
    assert p.kv_bytes_per_token == TOKEN
    assert p.weights == 4 * PARAMETERS
    assert p.packed == 4 * (PARAMETERS + 12 * 32)  # the head's 100 outputs are 7 tiles of 16
    assert (p.num_blocks, p.capacity_tokens, p.max_model_len) == (8 * 16, 8 * 256, 256)
    assert (p.pool_limit, p.full_sequences) == ("demand", 8)
    assert p.total + p.headroom + p.reserve == p.available


def test_a_length_that_is_not_whole_blocks_is_rounded_up() -> None:
    assert plan(max_running=1, max_model_len=193).num_blocks == 13


def test_a_plan_leaves_the_reserve_free_whatever_limits_it() -> None:
    for available in (floor() + BLOCK, floor() + 10 * SEQUENCE, 1024 * MIB):
        p = plan(available)
        assert p.total + p.reserve <= available


def test_f32_kv_takes_twice_the_bytes() -> None:
    assert plan(kv_format="f32").kv_bytes_per_token == 2 * TOKEN
    assert plan(numerics="exact").kv_bytes_per_token == 2 * TOKEN


def test_memory_limits_the_pool_to_whole_blocks() -> None:
    p = plan(floor() + 3 * SEQUENCE + BLOCK // 2)
    assert (p.num_blocks, p.pool_limit, p.full_sequences) == (48, "memory", 3)


def test_the_default_pool_is_capped_but_holds_one_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_plan, "DEFAULT_POOL", 5 * SEQUENCE)
    assert (plan().num_blocks, plan().pool_limit) == (80, "cap")
    monkeypatch.setattr(memory_plan, "DEFAULT_POOL", BLOCK)
    assert (plan().num_blocks, plan().max_model_len) == (16, 256)


def test_a_length_nobody_asked_for_is_cut_to_what_fits() -> None:
    p = plan(floor() + 7 * BLOCK)
    assert (p.max_model_len, p.model_max_len, p.num_blocks) == (7 * 16, 256, 7)
    assert any("112 tokens, cut from 256" in line for line in p.explain())


def test_a_length_that_was_asked_for_is_refused_with_one_that_fits() -> None:
    with pytest.raises(DoesNotFit, match="set max_model_len to 112 or less") as caught:
        plan(floor() + 7 * BLOCK, max_model_len=200)
    assert caught.value.param == "max_model_len"
    assert plan(floor() + 7 * BLOCK, max_model_len=112).max_model_len == 112


def test_with_f32_the_smaller_kv_format_is_named_as_well() -> None:
    with pytest.raises(DoesNotFit, match="or kv_format to f16"):
        plan(floor() + 7 * BLOCK, max_model_len=200, kv_format="f32")


def test_the_next_kv_format_is_named_where_it_is_smaller() -> None:
    for head_dim, kv_format, named in ((64, "f16", "q8_0"), (64, "q8_0", "q4_0"), (64, "q4_0", ""), (8, "f16", "")):
        made = shape(head_dim=head_dim)
        least = plan_memory(made, engine_config("tiny", {"kv_format": kv_format}), 1024 * MIB)
        room = 128 * MIB + least.packed + least.workspace + 8 * 16 * least.kv_bytes_per_token
        with pytest.raises(DoesNotFit) as caught:
            plan_memory(made, engine_config("tiny", {"kv_format": kv_format, "max_model_len": 200}), room)
        assert caught.value.message.endswith(f"or kv_format to {named}" if named else "or less")


def test_whole_numbers_take_a_scale_for_each_32_of_a_head() -> None:
    for kv_format, group in (("q8_0", 34), ("q4_0", 18)):
        p = plan_memory(shape(head_dim=80), engine_config("tiny", {"kv_format": kv_format}), 1024 * MIB)
        assert p.kv_bytes_per_token == 2 * 2 * 2 * 3 * group
        expected = f"2 (K, V) x 2 layers x 2 KV heads x 3 groups of 32 of the head size x {group} bytes = "
        assert any(expected + f"{p.kv_bytes_per_token} bytes ({kv_format})" in line for line in p.explain())


def test_kv_memory_is_taken_exactly() -> None:
    p = plan(kv_memory=3 * SEQUENCE + BLOCK - 1)
    assert (p.num_blocks, p.pool_limit) == (48, "kv_memory")


def test_kv_memory_beyond_the_memory_is_refused_with_what_is_left() -> None:
    with pytest.raises(DoesNotFit) as caught:
        plan(floor() + 5 * BLOCK, kv_memory=SEQUENCE)
    assert caught.value.param == "kv_memory"
    assert f"set kv_memory to {5 * BLOCK} or less" in caught.value.message


def test_kv_memory_below_one_block_is_refused() -> None:
    with pytest.raises(DoesNotFit, match=f"set kv_memory to {BLOCK} or more"):
        plan(kv_memory=BLOCK - 1)


def test_kv_memory_that_is_too_small_for_the_length_asked_for() -> None:
    with pytest.raises(DoesNotFit, match=f"set kv_memory to {SEQUENCE} or more, or max_model_len to 64 or less"):
        plan(kv_memory=4 * BLOCK, max_model_len=256)


def test_a_model_that_is_too_large_is_named_with_its_parts() -> None:
    with pytest.raises(DoesNotFit, match=r"tiny needs .* weights, .* workspace") as caught:
        plan(128 * MIB + 1000)
    assert caught.value.param == "model"
    assert "smaller or more strongly quantised model" in caught.value.message


def test_where_only_the_workspace_is_too_large_the_step_is_named() -> None:
    with pytest.raises(DoesNotFit, match="lower max_step_tokens or max_running") as caught:
        plan(256 * MIB, max_step_tokens=2**20)
    assert caught.value.param == "max_step_tokens"


def test_a_length_beyond_the_models_own_is_refused() -> None:
    with pytest.raises(ConfigError, match="made for 256 tokens"):
        plan(max_model_len=257)


def test_prompts_in_one_piece_need_room_for_the_longest() -> None:
    whole = plan(chunked_prefill=False, max_step_tokens=64)
    assert plan(max_step_tokens=64).workspace < whole.workspace == plan(max_step_tokens=256).workspace


def test_a_stored_score_matrix_is_part_of_the_workspace() -> None:
    """4 heads x 64 tokens x 256 positions in float32, and 4 x 100 x 128 for prompts of 100 in one piece; the
    reference has the scores of one token at a time."""

    def more(**settings: Any) -> int:
        return plan(attention="materialized", **settings).workspace - plan(**settings).workspace

    assert more(max_step_tokens=64) == 4 * 64 * 256 * 4
    assert more(max_step_tokens=64, max_model_len=100, chunked_prefill=False) == 4 * 100 * 128 * 4
    assert more(max_step_tokens=64, executor="reference") == 0


def test_the_reference_executor_is_planned_in_float64() -> None:
    assert plan(executor="reference").packed == 8 * PARAMETERS


def test_the_formula_that_is_printed_gives_the_number_that_is_planned() -> None:
    for settings in ({}, {"kv_format": "f32"}):
        p = plan(**settings)
        factors = [int(number) for number in re.findall(r"\d+", p.kv_formula)]
        product = 1
        for factor in factors:
            product *= factor
        assert product == p.kv_bytes_per_token
        assert any(f"{p.kv_formula} = {p.kv_bytes_per_token} bytes" in line for line in p.explain())


def test_pools_are_one_per_group() -> None:
    (pool,) = plan(max_running=2, block_size=32).pools()
    assert (pool.group, pool.num_blocks, pool.block_size) == ("full", 16, 32)


@pytest.mark.parametrize(
    ("available", "reserve"), [(0, 128 * MIB), (4096 * MIB, 4096 * MIB // 20), (2**40, 2048 * MIB)]
)
def test_the_reserve_grows_with_the_machine_between_two_ends(available: int, reserve: int) -> None:
    assert reserve_bytes(available) == reserve


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (100 * MIB, "100 MiB"), (4 * 2**30, "4.0 GiB")]
)
def test_bytes_for_people(count: int, text: str) -> None:
    assert format_bytes(count) == text


def test_config_json_alone_is_enough(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"torch_dtype": "bfloat16"}))
    found = read_shape(ModelConfig(path=str(tmp_path), name="tiny"))
    p = plan_memory(found, engine_config(str(tmp_path), {}), 1024 * MIB)
    assert (p.model, p.weights, p.kv_bytes_per_token) == ("tiny", 2 * PARAMETERS, TOKEN)


def test_a_dtype_that_is_not_known_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"dtype": "float8"}))
    with pytest.raises(ModelLoadError, match=r"config.json: dtype is 'float8'"):
        read_shape(ModelConfig(path=str(tmp_path)))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"none.gguf"):
        read_shape(ModelConfig(path=str(tmp_path / "none.gguf")))


@pytest.mark.model
def test_a_shape_reads_no_weight(smollm2_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Making the weights of a large model would copy whole matrices only to learn their formats."""
    monkeypatch.setattr(StoredTensor, "weight", None)
    formats = read_shape(ModelConfig(path=str(smollm2_path))).formats
    assert formats["model.layers.0.self_attn.q_proj.weight"] is WeightFormat.Q4_1
    assert formats["model.norm.weight"] is WeightFormat.F32


@pytest.mark.model
def test_the_real_model(smollm2_path: Path) -> None:
    """SmolLM2-135M: 30 layers, 3 KV heads of 64; 92 MiB of 4-bit weights with f32 norms."""
    p = plan_memory(read_shape(ModelConfig(path=str(smollm2_path))), engine_config(str(smollm2_path), {}), 8 * 2**30)
    assert p.kv_bytes_per_token == 2 * 30 * 3 * 64 * 2 == 23040
    assert p.max_model_len == 8192
    assert 80 * MIB < p.weights < smollm2_path.stat().st_size


@pytest.mark.model
def test_the_native_executor_stays_within_its_plan(smollm2_path: Path) -> None:
    """Planned sizes are bounds, and not far from the truth: the KV pool gets what they leave."""
    native = pytest.importorskip("tidemill.executors.native.executor", exc_type=ImportError)
    config = engine_config(str(smollm2_path), {"threads": 1})
    model = load_model(config.model)
    p = plan_memory(model, config, 8 * 2**30)
    executor = native.NativeExecutor(fuse(model.graph), model.weights, config.executor)
    try:
        norms = sum(4 * spec.shape[0] for spec in model.graph.weights if len(spec.shape) == 1)
        assert executor.packed_bytes == p.packed - norms
        assert 0.5 * p.workspace < executor.workspace_bytes(512, 64) <= p.workspace
    finally:
        executor.close()


def test_adapters_are_counted(tmp_path: Path) -> None:
    """A named one as large as its file says, in float32; places that are left at the largest rank, for every layer."""
    header = {"a": {"dtype": "F16", "shape": [4, 32], "data_offsets": [0, 256]}}
    text = json.dumps(header).encode()
    (tmp_path / "adapter_model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(256))
    per_rank = 2 * (2 * (32 + 32) + 2 * (16 + 32) + 3 * (32 + 64)) + (100 + 32)
    assert plan().adapters == 0
    assert plan(lora=(f"x={tmp_path}",)).adapters == 4 * 4 * 32
    both = plan(lora=(f"x={tmp_path}",), max_loras=3, max_lora_rank=5)
    assert both.adapters == 4 * 4 * 32 + 2 * 4 * 5 * per_rank
    assert both.total == plan().total + both.adapters
    assert any(line.split()[0] == "adapters" and "3 places" in line for line in both.explain())
    assert not any("adapters" in line for line in plan().explain())
    with pytest.raises(DoesNotFit, match="lower max_loras or max_lora_rank") as refused:
        plan(floor() + 16 * MIB, max_loras=256, max_lora_rank=4096)
    assert refused.value.param == "max_loras"

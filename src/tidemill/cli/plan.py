"""``tidemill plan``: what a model needs, and what of it fits, without loading it."""

from __future__ import annotations

import dataclasses
import json as jsonlib
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemill.cli.default import DEFAULT_MODEL, ModelArgument, explained
from tidemill.cli.models_file import ModelsFileOption, named
from tidemill.cli.options import DebugOption, JsonOption, parse_size, with_settings
from tidemill.core.config import EngineConfig, ExecutorConfig, ModelConfig, SchedulerConfig

if TYPE_CHECKING:
    from tidemill.models.memory_plan import MemoryPlan

__all__ = ["plan", "plan_dict"]

MemoryOption = Annotated[
    int | None,
    typer.Option(
        "--memory",
        help="Plan for this much available memory instead of what this machine has free.",
        parser=parse_size,
        metavar="SIZE",
    ),
]


@with_settings(
    ModelConfig,
    ExecutorConfig,
    SchedulerConfig,
    EngineConfig,
    names={"max_model_len": "--context", "max_running": "--concurrency"},
    without=(
        "chat_template",
        "merge_turns",
        "threads",
        "isa",
        "attention",
        "policy",
        "batch_size",
        "batch_wait",
        "max_waiting",
        "order",
        "order_patience",
        "fair_credit",
        "victim",
        "preempted_blocks",
        "itl_target",
        "prefill_share",
        "kv_reservation",
        "prefix_cache",
        "prefix_cache_ttl",
        "strict",
        "profile_every",
    ),
)
def plan(
    model: ModelArgument = DEFAULT_MODEL,
    memory: MemoryOption = None,
    models_file: ModelsFileOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 (read by main)
    **settings: Any,
) -> None:
    """Show the memory a model needs: weights, KV cache by its formula, workspace, and how many sequences fit."""
    from tidemill.core.machine import available_memory
    from tidemill.core.settings import engine_config
    from tidemill.models.draft_plan import draft_bytes
    from tidemill.models.memory_plan import plan_memory
    from tidemill.models.shape import read_shape

    model, settings = named(model, settings, models_file)
    config = engine_config(model, settings)
    with explained(model):
        shape = read_shape(config.model)
    available = available_memory() if memory is None else memory
    made = plan_memory(shape, config, available, draft=draft_bytes(config, available))
    print(jsonlib.dumps(plan_dict(made)) if json else "\n".join(made.explain()))


def plan_dict(made: MemoryPlan) -> dict[str, Any]:
    """A plan in plain types: its fields, and what follows from them."""
    derived = ("capacity_tokens", "kv_bytes", "total", "headroom", "full_sequences")
    return dataclasses.asdict(made) | {name: getattr(made, name) for name in derived}

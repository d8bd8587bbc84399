"""``tidemill serve``: the OpenAI-compatible HTTP server."""

from __future__ import annotations

import dataclasses
from typing import Any

from tidemill.cli.default import DEFAULT_MODEL, ModelArgument, explained
from tidemill.cli.options import DebugOption, with_settings
from tidemill.core.config import EngineConfig, ExecutorConfig, ModelConfig, SchedulerConfig, ServerConfig

__all__ = ["ready_lines", "serve"]


@with_settings(ModelConfig, ServerConfig, SchedulerConfig, ExecutorConfig, EngineConfig)
def serve(
    model: ModelArgument = DEFAULT_MODEL,
    debug: DebugOption = False,  # noqa: ARG001 (read by main)
    **settings: Any,
) -> None:
    """Serve a model over HTTP: /v1/chat/completions, /v1/completions, /v1/models, /health, /ready, /metrics."""
    from tidemill.core.machine import available_memory
    from tidemill.core.settings import engine_config, server_config
    from tidemill.models.memory_plan import plan_memory
    from tidemill.models.shape import read_shape

    door_names = {item.name for item in dataclasses.fields(ServerConfig)}
    door = server_config({name: value for name, value in settings.items() if name in door_names})
    engine = engine_config(model, {name: value for name, value in settings.items() if name not in door_names})
    with explained(model):
        shape = read_shape(engine.model)
    print("\n".join(plan_memory(shape, engine, available_memory()).explain()), flush=True)
    raise NotImplementedError(door)


def ready_lines(url: str, model: str, *, needs_key: bool) -> list[str]:
    """What to print once requests are welcome: the address, and a command that works as it stands."""
    key = ' -H "Authorization: Bearer $TIDEMILL_API_KEY"' if needs_key else ""
    body = f'{{"model": "{model}", "messages": [{{"role": "user", "content": "What is a tide mill?"}}]}}'
    return [
        f"ready: {model} at {url}/v1",
        f"  curl {url}/v1/chat/completions -H 'Content-Type: application/json'{key} -d '{body}'",
    ]

"""``tidemill serve``: the OpenAI-compatible HTTP server."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tidemill.cli.config_file import ConfigFileOption, read_config_file
from tidemill.cli.default import DEFAULT_MODEL, ModelArgument, explained
from tidemill.cli.models_file import ModelsFileOption, named
from tidemill.cli.options import DebugOption, with_settings
from tidemill.core.config import EngineConfig, ExecutorConfig, ModelConfig, SchedulerConfig, ServerConfig
from tidemill.core.errors import ConfigError

if TYPE_CHECKING:
    from tidemill.engine.client import ProcessEngine
    from tidemill.engine.crash_reports import CrashReports
    from tidemill.models.model import Model
    from tidemill.serve.reload import Reloader

__all__ = ["serve"]


@with_settings(ModelConfig, ServerConfig, SchedulerConfig, ExecutorConfig, EngineConfig)
def serve(
    model: ModelArgument = DEFAULT_MODEL,
    models_file: ModelsFileOption = None,
    config: ConfigFileOption = None,
    debug: DebugOption = False,  # noqa: ARG001 (read by main)
    **settings: Any,
) -> None:
    """Serve a model over HTTP: /v1/chat/completions and /v1/completions, or /v1/embeddings of a model that embeds;
    /v1/models, /health, /ready, /metrics."""

    def read() -> tuple[EngineConfig, ServerConfig]:
        return _read(model, settings, models_file, config)

    engine, door = read()
    code = _run(engine, door, None if config is None else read)
    if code:
        raise typer.Exit(code)


Reading = Callable[[], tuple[EngineConfig, ServerConfig]]


def _read(
    model: str, typed: Mapping[str, Any], models_file: str | None, config: str | None
) -> tuple[EngineConfig, ServerConfig]:
    """The settings: of the file, of the models file's entry, and what was typed."""
    from tidemill.core.settings import engine_config, server_config

    path, settings = named(model, typed, models_file)
    settings = {**read_config_file(config), **settings}
    of_door = {item.name for item in dataclasses.fields(ServerConfig)}
    door = server_config({name: value for name, value in settings.items() if name in of_door})
    return engine_config(path, {name: value for name, value in settings.items() if name not in of_door}), door


def _run(config: EngineConfig, door: ServerConfig, read: Reading | None) -> int:
    """Plan, load and serve until a signal; the exit code. ``read`` gives the settings again."""
    from tidemill.core.machine import available_memory
    from tidemill.engine.client import ProcessEngine
    from tidemill.models.draft_plan import draft_bytes
    from tidemill.models.loading import load_model, located
    from tidemill.models.memory_plan import plan_memory
    from tidemill.serve.listener import check_config

    check_config(door)
    as_read = config
    with explained(config.model.path):
        config = dataclasses.replace(config, model=located(config.model))  # a restart must not need the hub
        model = load_model(config.model)  # maps the files and reads no weight; the engine process loads them
        draft = draft_bytes(config, available_memory())
    print("\n".join(plan_memory(model, config, available_memory(), draft=draft).explain()), flush=True)
    with ProcessEngine(config, crashes=_crash_reports(config, door)).begun() as engine:
        reloader = None if read is None else _reloader(read, as_read, door, engine)
        return _serve(model, config.model, door, engine, reloader)


def _reloader(read: Reading, config: EngineConfig, door: ServerConfig, engine: ProcessEngine) -> Reloader:
    from tidemill.serve.reload import Reloader

    return Reloader(read, engine=config, server=door, change_engine=engine.change)


def _crash_reports(config: EngineConfig, door: ServerConfig) -> CrashReports | None:
    """Where to write down how an engine process died, with the settings that it ran with and no key among them."""
    from tidemill.engine.crash_reports import CrashReports, state_folder

    if not door.crash_reports:
        return None
    folder = state_folder() / "crashes" if door.crash_dir is None else Path(door.crash_dir).expanduser()
    settings = {**dataclasses.asdict(config), "server": {**dataclasses.asdict(door), "api_keys": len(door.api_keys)}}
    return CrashReports(folder, most=door.crash_reports, settings=settings, prompts=door.log_prompts)


def _serve(
    model: Model, config: ModelConfig, door: ServerConfig, engine: ProcessEngine, reloader: Reloader | None
) -> int:
    """Make the server while the engine process loads, and serve; the exit code."""
    from tidemill.frontend.model_text import ModelText
    from tidemill.serve.launch import LaunchedBackend
    from tidemill.serve.metrics import PrometheusMetrics
    from tidemill.serve.server import Example, run

    text = ModelText.from_source(
        model.text,
        merge_turns=config.merge_turns,
        answer_parser=config.answer_parser,
        strict_tools=config.strict_tools,
    )
    if model.embedding is not None:
        print(f"note: {model.name} gives vectors of texts: chats and completions are refused", flush=True)
    elif text.chat_problem is not None:
        if config.chat_template is not None:
            raise ConfigError(f"chat_template: {text.chat_problem}", param="chat_template")
        print(f"note: chats are refused: {text.chat_problem}", flush=True)
    metrics = PrometheusMetrics()
    backend = LaunchedBackend(engine, text, model=model.name, recorder=metrics)
    example: Example = "embedding" if model.embedding else "completion" if text.chat_problem else "chat"
    return run(
        door,
        backend,
        engine=engine,
        adapters=engine,
        metrics=metrics,
        lifetime=backend,
        example=example,
        reloader=reloader,
        say=_say,
    )


def _say(line: str) -> None:
    print(line, flush=True)

"""What the commands of ``tidemill bench`` put a load on: a server (--url), or MODEL in this command."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from tidemill.bench.load.options import ServerOptions
from tidemill.cli.default import DEFAULT_MODEL, explained
from tidemill.cli.models_file import named
from tidemill.core.config import EngineConfig, ExecutorConfig, ModelConfig, SchedulerConfig
from tidemill.core.errors import ConfigError
from tidemill.core.settings import engine_config, settings_of

if TYPE_CHECKING:
    from tidemill.bench.job import Done, Job

__all__ = ["ENGINE", "BenchTarget", "options_of"]

_T = TypeVar("_T")
ENGINE = (ModelConfig, SchedulerConfig, ExecutorConfig, EngineConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchTarget:
    """One of both."""

    server: ServerOptions
    served: str | None
    """The model's name at the server; None: the first it lists."""
    model: str
    engine: Mapping[str, Any]
    """Settings of the engine in this command."""
    own: str
    """The model as it was typed."""

    @classmethod
    def of(cls, model: str, served: str | None, settings: Mapping[str, Any], models_file: str | None) -> BenchTarget:
        """From what was typed. Raises ConfigError for what would be ignored."""
        server = options_of(ServerOptions, settings)
        engine = {name: value for name, value in settings.items() if name in settings_of(*ENGINE)}
        typed = model
        if server.url is None:
            _refuse_of_servers(server, served)
            model, engine = named(model, engine, models_file)
        else:
            _refuse_of_engines(engine, model)
            server = _with_key(server)
        return cls(server=server, served=served, model=model, engine=engine, own=typed)

    async def measured(self, job: Job) -> Done:
        """Do a job on it. Raises TidemillError."""
        if self.server.url is not None:
            return await job.at_server(self.server, self.served)
        with explained(self.own):
            return await job.in_process(engine_config(self.model, self.engine))

    def described(self) -> dict[str, Any]:
        """For the record, without keys."""
        return {"url": self.server.url, "engine": dict(self.engine)}


def options_of(owner: type[_T], settings: Mapping[str, Any]) -> _T:
    """Options of a class, made from those settings that are its fields."""
    known = settings_of(owner)
    return owner(**{name: item.checked(settings[name]) for name, item in known.items() if name in settings})


def _with_key(server: ServerOptions) -> ServerOptions:
    """With a key from the environment, if none was typed."""
    key = server.api_key or os.environ.get("TIDEMILL_BENCH_API_KEY") or os.environ.get("OPENAI_API_KEY")
    return dataclasses.replace(server, api_key=key)


def _refuse_of_servers(server: ServerOptions, served: str | None) -> None:
    """Options that mean something for a server alone must not be ignored."""
    for item in dataclasses.fields(server):
        if getattr(server, item.name) != item.default:
            raise ConfigError(f"{item.name} is of a server; name it with --url", param=item.name)
    if served is not None:
        raise ConfigError("--model is a name at a server: give its --url, or MODEL without --model", param="model")


def _refuse_of_engines(engine: Mapping[str, Any], model: str) -> None:
    for name in engine:
        raise ConfigError(f"{name} is a setting of an engine in this command; --url names a server", param=name)
    if model != DEFAULT_MODEL:
        raise ConfigError(f"{model}: with --url, name the server's model with --model", param="model")

"""Which configurations are compared: each strategy on and at its slow twin, all else on; and all on against all off.

A strategy that is off by default is compared with its twin when it is named, and is in no other row. One whose twin
cannot have another one (``alone``) is measured with that one off on both sides, or the row would show both. What acts
at the start of an engine and not on its steps has no row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tidemill.core.config import EngineConfig, ExecutorConfig, ModelConfig, SchedulerConfig
from tidemill.core.errors import ConfigError
from tidemill.core.settings import Setting, settings_of
from tidemill.core.strategy import STRATEGIES, Strategy

__all__ = ["Contest", "chosen", "chosen_contests", "configurations", "contests", "without"]

_PARTS = {"ModelConfig": "model", "ExecutorConfig": "executor", "SchedulerConfig": "scheduler"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """One row: two configurations that differ in what the row is about."""

    strategy: Strategy | None
    """None: all of them together."""
    twin: str
    """The value of its setting that it is compared with; empty for all together."""
    off: EngineConfig
    on: EngineConfig

    @property
    def name(self) -> str:
        """The strategy's name, and the twin's value."""
        return "all together" if self.strategy is None else f"{self.strategy.name} ({self.twin_text})"

    @property
    def why(self) -> str:
        """The sentence that explains the row."""
        if self.strategy is None:
            return "Everything that the rows above turn on one by one."
        return self.strategy.between.get(self.twin, self.strategy.why)

    @property
    def twin_text(self) -> str:
        """The twin as the command line says it."""
        return {"False": "off", "True": "on"}.get(self.twin, self.twin)


def chosen(names: Sequence[str]) -> list[Strategy]:
    """The strategies with these names, those of scheduling first; where no name is given, all that act on steps and
    are on by default. Raises ConfigError for a name that is not there or that acts at the start alone."""
    for name in names:
        if name not in STRATEGIES:
            raise ConfigError(f"there is no strategy {name}; there are: {', '.join(STRATEGIES)}", param="strategy")
        if STRATEGIES[name].acts == "start":
            raise ConfigError(
                f"{name} acts when an engine starts and not on its steps: compare {STRATEGIES[name].metric}",
                param="strategy",
            )
    found = [one for one in STRATEGIES.values() if one.acts == "steps" and (one.name in names if names else not one.on)]
    return sorted(found, key=lambda one: not one.setting.startswith(SchedulerConfig.__name__))


def chosen_contests(config: EngineConfig, names: Sequence[str]) -> list[Contest]:
    """The rows of strategies by name; ``name=value`` is the row of that twin alone. Raises ConfigError as ``chosen``
    does, and for a value that has no row."""
    wanted = [tuple(name.partition("=")[::2]) for name in names]
    made = contests(config, chosen([name for name, _ in wanted]))
    for name, twin in wanted:
        own = [row for row in made if row.strategy is not None and row.strategy.name == name]
        if twin and twin not in [row.twin_text for row in own]:
            there = ", ".join(row.twin_text for row in own)
            raise ConfigError(f"{name} has no row for {twin}; it has: {there}", param="strategy")
    return [row for row in made if row.strategy is None or _is_wanted(row, row.strategy.name, wanted)]


def _is_wanted(row: Contest, name: str, wanted: Sequence[tuple[str, ...]]) -> bool:
    twins = {twin for own, twin in wanted if own == name}
    return not twins or "" in twins or row.twin_text in twins


def contests(config: EngineConfig, strategies: Sequence[Strategy]) -> list[Contest]:
    """The rows for these strategies, the cumulative one last where several of them are on by default. A setting of
    ``config`` that is at a twin's value is turned on."""
    full = config
    usual = [strategy for strategy in strategies if not strategy.on]
    for strategy in usual:
        full = _switched_on(full, strategy)
    rows = [row for strategy in strategies for row in _rows(full, strategy)]
    if len(usual) > 1:
        rows.append(Contest(strategy=None, twin="", off=without(full, usual), on=full))
    return rows


def without(config: EngineConfig, strategies: Iterable[Strategy]) -> EngineConfig:
    """The configuration with these at their twins."""
    for strategy in strategies:
        config = _with(config, strategy, _parsed(strategy, strategy.baseline))
    return config


def configurations(rows: Iterable[Contest]) -> list[EngineConfig]:
    """Each configuration once, in the order of the rows: what is off, then what is on."""
    return list(dict.fromkeys(config for row in rows for config in (row.off, row.on)))


def _rows(full: EngineConfig, strategy: Strategy) -> Iterator[Contest]:
    on = without(full, [STRATEGIES[name] for name in strategy.alone])
    if strategy.on:
        on = _with(on, strategy, _parsed(strategy, _on_value(full, strategy)))
    for value in (strategy.baseline, *strategy.between):
        yield Contest(strategy=strategy, twin=value, off=_with(on, strategy, _parsed(strategy, value)), on=on)


def _on_value(config: EngineConfig, strategy: Strategy) -> str:
    """The value that is compared with the twin; one with a path is the configuration's own."""
    kind, placeholder, _ = strategy.on.partition(":PATH")
    own = str(getattr(_part(config, strategy), _setting(strategy).name))
    if placeholder and not own.startswith(f"{kind}:"):
        setting = _setting(strategy).name
        raise ConfigError(f"{strategy.name} needs to know what to compare: --{setting} {kind}:PATH", param=setting)
    return own if placeholder else strategy.on


def _switched_on(config: EngineConfig, strategy: Strategy) -> EngineConfig:
    """Its setting as it is, unless that is the twin or on the way to it: then its default."""
    value = getattr(_part(config, strategy), _setting(strategy).name)
    if str(value) not in (strategy.baseline, *strategy.between):
        return config
    return _with(config, strategy, _setting(strategy).default)


def _setting(strategy: Strategy) -> Setting:
    owner, _, name = strategy.setting.partition(".")
    found = settings_of(ModelConfig, ExecutorConfig, SchedulerConfig, EngineConfig)[name]
    assert found.owner.__name__ == owner, strategy.setting
    return found


def _parsed(strategy: Strategy, text: str) -> Any:
    """The value of its setting that a text names."""
    setting = _setting(strategy)
    if setting.kind is bool:
        return setting.checked({"True": True, "False": False}[text])
    return setting.checked(setting.kind(text))


def _part(config: EngineConfig, strategy: Strategy) -> Any:
    owner = strategy.setting.partition(".")[0]
    return config if owner == "EngineConfig" else getattr(config, _PARTS[owner])


def _with(config: EngineConfig, strategy: Strategy, value: Any) -> EngineConfig:
    owner, _, name = strategy.setting.partition(".")
    part = replace(_part(config, strategy), **{name: value})
    return part if owner == "EngineConfig" else replace(config, **{_PARTS[owner]: part})

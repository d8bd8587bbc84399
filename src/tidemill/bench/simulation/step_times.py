"""How long a step takes, from what it computes.

    seconds = body(tokens) + head(outputs) + attention + host + host_row x rows

body and head are measured curves: what all layers take for so many tokens, and the output head for so many of them that
draw. Both are flat where weights stream from memory and rise where arithmetic counts, so they are interpolated between
measured points. Attention is its floating-point operations, counted by ``graph.passes.cost`` with each layer's window,
times the seconds that one takes: with one new token, where the KV streams, and with many.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

from tidemill.core.config import ExecutorConfig
from tidemill.core.errors import ConfigError
from tidemill.graph.formats import WeightFormat
from tidemill.graph.graph import Attention, Graph
from tidemill.graph.kv_format import KvFormat
from tidemill.graph.passes.cost import RowShape, node_costs

__all__ = [
    "Curve",
    "StepModel",
    "StepTimes",
    "attention_flops",
    "load_step_times",
    "save_step_times",
    "variant_name",
]

_VERSION = 1
Curve = tuple[tuple[float, float], ...]
"""(count, seconds) in ascending order of both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Of one model on one executor and machine."""

    body: Curve
    """Seconds of all layers but the output head and attention, by tokens of the step."""
    head: Curve
    """Seconds of the output head, by positions drawn from."""
    attention_one: float
    """Seconds per floating-point operation of attention in rows of one token."""
    attention_many: float
    """The same in rows of several."""
    host: float = 0.0
    """Seconds outside the executor, per step and, below, per row."""
    host_row: float = 0.0

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """From plain types. Raises ConfigError for what is no StepTimes."""
        try:
            made = cls(
                body=tuple((float(x), float(y)) for x, y in values["body"]),
                head=tuple((float(x), float(y)) for x, y in values["head"]),
                attention_one=float(values["attention_one"]),
                attention_many=float(values["attention_many"]),
                host=float(values["host"]),
                host_row=float(values["host_row"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"these are no step times: {type(error).__name__}: {error}", param="step_times") from None
        made.check()
        return made

    def check(self) -> None:
        """Raise ConfigError unless more work takes more time, and nothing less than none."""
        for name, curve in (("body", self.body), ("head", self.head)):
            rises = all(before[0] < after[0] and before[1] <= after[1] for before, after in pairwise(curve))
            if not curve or curve[0][0] <= 0 or curve[0][1] < 0 or not rises:
                raise ConfigError(f"{name} has to rise from above 0 on, point by point", param="step_times")
        if not min(self.attention_one, self.attention_many, self.host, self.host_row) >= 0:
            raise ConfigError("a part of a step cannot take less than no time", param="step_times")


class StepModel:
    """The seconds of any step of one model."""

    def __init__(self, graph: Graph, formats: Mapping[str, WeightFormat], times: StepTimes) -> None:
        self._times = times
        self._per_pair = _attention_flops(graph, formats)

    def seconds(self, rows: Iterable[tuple[int, int, int]]) -> float:
        """``rows``: (start, tokens, outputs) of each."""
        tokens = outputs = count = 0
        one = many = 0.0
        for start, new, drawn in rows:
            tokens += new
            outputs += drawn
            count += 1
            flops = self._attention(start, new)
            if new == 1:
                one += flops
            else:
                many += flops
        times = self._times
        return (
            _at(times.body, tokens)
            + (_at(times.head, outputs) if outputs else 0.0)
            + one * times.attention_one
            + many * times.attention_many
            + times.host
            + count * times.host_row
        )

    def _attention(self, start: int, tokens: int) -> float:
        row = RowShape(start=start, tokens=tokens)
        return sum(flops * row.attended(window) for window, flops in self._per_pair)


def attention_flops(graph: Graph, formats: Mapping[str, WeightFormat], row: RowShape) -> float:
    """Floating-point operations of attention in one row."""
    return sum(flops * row.attended(window) for window, flops in _attention_flops(graph, formats))


def _attention_flops(graph: Graph, formats: Mapping[str, WeightFormat]) -> tuple[tuple[int | None, int], ...]:
    """(window, operations per pair of a token and a position it looks at), over all layers with that window."""
    costs = node_costs(graph, formats, rows=[RowShape(start=0, tokens=1)], kv_format=KvFormat.F16)
    found: Counter[int | None] = Counter()
    for node, cost in zip(graph.nodes, costs, strict=True):
        if isinstance(node, Attention):
            found[node.window] += cost.flops
    return tuple(found.items())


def _at(curve: Curve, count: float) -> float:
    """Between two points on the straight line, below the first as the first, beyond the last on the last line."""
    if count <= curve[0][0]:
        return curve[0][1]
    place = min(bisect_right(curve, (count, float("inf"))), len(curve) - 1)
    if place == 0:  # one point: what it takes in proportion
        return curve[0][1] * count / curve[0][0]
    (x0, y0), (x1, y1) = curve[place - 1], curve[place]
    return y0 + (y1 - y0) * (count - x0) / (x1 - x0)


def variant_name(config: ExecutorConfig) -> str:
    """What of an executor's settings changes the time of its steps; step times are kept under this name."""
    threads = "all" if config.threads is None else config.threads
    return (
        f"executor={config.executor} numerics={config.numerics} attention={config.attention} "
        f"kv={config.resolved_kv_format} threads={threads} isa={config.isa}"
    )


def save_step_times(path: Path, model: str, machine: str, found: Mapping[str, StepTimes]) -> None:
    """Write step times by variant."""
    variants = {name: asdict(times) for name, times in found.items()}
    values = {"version": _VERSION, "model": model, "machine": machine, "variants": variants}
    path.write_text(json.dumps(values, indent=1) + "\n")


def load_step_times(path: Path, model: str) -> dict[str, StepTimes]:
    """Read what ``save_step_times`` wrote for this model. Raises ConfigError naming the file and what is wrong."""
    try:
        values = json.loads(path.read_text())
        if values["version"] != _VERSION:
            raise ConfigError(f"is of version {values['version']}, and {_VERSION} is read")
        if values["model"] != model:
            raise ConfigError(f"is of {values['model']}, and the model is {model}")
        return {name: StepTimes.of(times) for name, times in values["variants"].items()}
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", param="step_times") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} has no step times: {type(error).__name__}: {error}", param="step_times") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}", param="step_times") from None

"""Step times measured on this machine: a few shapes of step on the executor, and the loop's own time.

    prefill n   tokens n, outputs 1      gives body(n) + head(1)
    decode n    tokens n, outputs n      gives body(n) + head(n)

head(1) streams the output head's weights once, as one token streams all of them: its share of the first point is its
share of the weights' bytes. Attention is what the same shape takes longer with a long context than with a short one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from tidemill.bench.host import HostTime, measure_host
from tidemill.bench.rig import Rig
from tidemill.bench.simulation.step_times import Curve, StepTimes, attention_flops
from tidemill.bench.work import Work
from tidemill.core.config import EngineConfig
from tidemill.graph.formats import WeightFormat
from tidemill.graph.graph import Graph, Rows
from tidemill.graph.kv_format import KvFormat
from tidemill.graph.passes.cost import RowShape, node_costs
from tidemill.models.shape import read_shape

__all__ = ["fitted", "measure_step_times", "shapes", "with_host"]

_SHORT: Final = 16
_LONG: Final = 1024
_DECODE: Final = (1, 2, 4, 8, 16, 32, 64)
_PREFILL: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_CHUNK: Final = 128
_REPEATS: Final = 9
_SECONDS: Final = 0.4
_STREAMS: Final = (1, 16)


def shapes(most: int) -> list[Work]:
    """What is measured, of a model with so many positions."""
    long = min(_LONG, most // 2)
    works = [Work(streams=n, context=_SHORT, tokens=1) for n in _DECODE]
    works += [Work(streams=1, context=0, tokens=n) for n in _PREFILL if n < most]
    works += [Work(streams=16, context=long, tokens=1), Work(streams=1, context=long, tokens=min(_CHUNK, most // 4))]
    return works


def measure_step_times(config: EngineConfig) -> StepTimes:
    """Measure it, but for the host's part."""
    works = shapes(read_shape(config.model).max_position)
    rig = Rig(config, works, later=1)
    try:
        seconds = {work: rig.measure(work, repeats=_REPEATS, seconds=_SECONDS).median for work in works}
        return fitted(rig.graph, rig.formats, seconds)
    finally:
        rig.close()


def with_host(times: StepTimes, config: EngineConfig) -> StepTimes:
    """The same with the time that the engine's loop takes beside the executor: a straight line through two numbers of
    streams, without the text, which an engine has nothing to do with."""
    few, many = measure_host(config, _STREAMS, most=read_shape(config.model).max_position)
    row = max(0.0, (_engine(many) - _engine(few)) / (many.streams - few.streams))
    return replace(times, host=max(0.0, _engine(few) - row * few.streams), host_row=row)


def fitted(graph: Graph, formats: Mapping[str, WeightFormat], seconds: Mapping[Work, float]) -> StepTimes:
    """Step times from measured seconds of ``shapes``."""
    prefill = {work.tokens: work for work in seconds if work.context == 0}
    decode = {work.streams: work for work in seconds if work.context == _SHORT}
    long_one, long_many = (
        next(work for work in seconds if work.context > _SHORT and (work.tokens == 1) is single)
        for single in (True, False)
    )

    def flops(work: Work) -> float:
        return work.streams * attention_flops(graph, formats, RowShape(start=work.context, tokens=work.tokens))

    def per_flop(long: Work, short: Work) -> float:
        return max(0.0, seconds[long] - seconds[short]) / (flops(long) - flops(short))

    one = per_flop(long_one, decode[long_one.streams])
    many = per_flop(long_many, prefill[long_many.tokens])

    def rest(work: Work) -> float:
        return seconds[work] - flops(work) * (one if work.tokens == 1 else many)

    head_one = rest(prefill[1]) * _head_share(graph, formats)
    body = _rising((n, rest(work) - head_one) for n, work in sorted(prefill.items()))
    head = _rising((n, rest(work) - dict(body)[n] if n > 1 else head_one) for n, work in sorted(decode.items()))
    return StepTimes(body=body, head=head, attention_one=one, attention_many=many)


def _head_share(graph: Graph, formats: Mapping[str, WeightFormat]) -> float:
    """The output head's part of the weights that a step of one token reads."""
    costs = node_costs(graph, formats, rows=[RowShape(start=0, tokens=1)], kv_format=KvFormat.F16)
    total = sum(cost.weight_bytes for cost in costs)
    return (
        sum(c.weight_bytes for node, c in zip(graph.nodes, costs, strict=True) if node.out.rows is Rows.OUTPUTS) / total
    )


def _rising(points: Iterable[tuple[int, float]]) -> Curve:
    """More work cannot take less time: what was measured as less was noise."""
    found: list[tuple[float, float]] = []
    for count, seconds in points:
        found.append((count, max(seconds, found[-1][1] if found else 0.0)))
    return tuple(found)


def _engine(host: HostTime) -> float:
    return sum(seconds for part, seconds in host.parts.items() if part != "detokenise")

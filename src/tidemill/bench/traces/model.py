"""A model of a trace, small enough to keep: arrivals, lengths, sessions, sharing, tenants. JSON on the disk."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import msgspec

from tidemill.bench.traces.arrivals import Arrivals
from tidemill.bench.traces.joint import Joint
from tidemill.bench.traces.quantiles import LEVELS
from tidemill.bench.traces.sharing import Sharing
from tidemill.bench.traces.talks import Talks
from tidemill.core.errors import SetupError

__all__ = ["TenantShare", "TraceModel", "load_model", "model_json", "packaged"]

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantShare:
    """A tenant and priority, and their share of the requests."""

    tenant: str | None
    priority: int
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceModel:
    """What ``fit`` makes of a trace and ``synth`` makes traces of."""

    version: int
    source: str
    """What it was made from, with its terms."""
    requests: int
    """How many requests that had."""
    arrivals: Arrivals
    """Of sessions where there are ``talks``, else of requests."""
    lengths: Joint
    """Of requests that continue none: prompt tokens after the common beginning, and output tokens."""
    talks: Talks | None = None
    sharing: Sharing | None = None
    tenants: tuple[TenantShare, ...] = ()
    notes: tuple[str, ...] = ()
    """What the trace did not say and was presumed."""

    @property
    def per_arrival(self) -> float:
        """Requests that come of one arrival."""
        if self.talks is None:
            return 1.0
        return sum(number * count for number, count in enumerate(self.talks.turns, 1)) / sum(self.talks.turns)


def model_json(model: TraceModel) -> bytes:
    """The file's content: an object with a line for each part."""
    parts = msgspec.json.decode(msgspec.json.encode(model), type=dict[str, msgspec.Raw])
    return b"{\n" + b",\n".join(b'"%s": %s' % (name.encode(), bytes(part)) for name, part in parts.items()) + b"\n}\n"


def packaged() -> dict[str, Path]:
    """Models that come with the package, by name."""
    folder = resources.files("tidemill.bench.traces") / "fits"
    with resources.as_file(folder) as path:
        return {file.stem: file for file in sorted(path.glob("*.json"))}


def load_model(name: str) -> TraceModel:
    """A model by file or packaged name. Raises SetupError for what is none."""
    known = packaged()
    path = known.get(name) or Path(name)
    try:
        content = path.read_bytes()
    except OSError as error:
        fix = f"name a file that `trace fit` wrote, or one of {', '.join(known)}"
        raise SetupError(f"{name}: {error.strerror or error}; {fix}") from error
    try:
        model = msgspec.json.decode(content, type=TraceModel)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise SetupError(f"{path}: no model of a trace ({error}); write one with `trace fit`") from error
    if problem := next(_problems(model), None):
        raise SetupError(f"{path}: {problem}; write it anew with `trace fit`")
    return model


def _problems(model: TraceModel) -> Iterator[str]:
    """What is wrong with numbers of the right kind."""
    if model.version != VERSION:
        yield f"version {model.version} is not {VERSION}"
    arrivals = model.arrivals
    if not (arrivals.window > 0 and math.isfinite(arrivals.window) and arrivals.rates and sum(arrivals.rates) > 0):
        yield "arrivals: window and rates have to be above 0"
    if not all(rate >= 0 and math.isfinite(rate) for rate in arrivals.rates):
        yield "arrivals.rates: below 0 or not finite"
    if not (arrivals.shape > 0 and 0 <= arrivals.memory < 1 and 0 <= arrivals.follow <= 1 and arrivals.step >= 0):
        yield "arrivals: shape, memory or step out of range"
    if arrivals.gaps and len(arrivals.gaps) != len(arrivals.borders) + 1:
        yield "arrivals.borders: there has to be one between each two of gaps"
    for name, listed in _quantiles(model):
        if len(listed) != len(LEVELS):
            yield f"{name}: {len(listed)} quantiles where there have to be {len(LEVELS)}"
        elif name.startswith("arrivals") and not listed[-1] > 0:
            yield f"{name}: all gaps are 0"
        elif not all(math.isfinite(value) and value >= 0 for value in listed) or list(listed) != sorted(listed):
            yield f"{name}: has to ascend from 0 or more"
    for name, joint in _joints(model):
        rows = joint.pairs
        if (
            not rows
            or any(len(row) != len(rows[0]) or min(row, default=-1) < 0 for row in rows)
            or not sum(map(sum, rows))
        ):
            yield f"{name}.pairs: has to be a table of counts"
    if model.talks and not sum(model.talks.turns):
        yield "talks.turns: has to have a session"
    for place, item in enumerate(model.sharing.beginnings if model.sharing else ()):
        if not -1 <= item.after < place or item.tokens < 1 or item.share < 0:
            yield f"sharing.beginnings[{place}]: goes on from a later one, or is empty"
    if model.sharing and model.sharing.block < 1:
        yield "sharing.block: has to be 1 or more"


def _joints(model: TraceModel) -> Iterator[tuple[str, Joint]]:
    yield "lengths", model.lengths
    if model.talks:
        yield "talks.later", model.talks.later
    if model.sharing and model.sharing.continued:
        yield "sharing.continued.lengths", model.sharing.continued.lengths
        yield "sharing.continued.parts", model.sharing.continued.parts


def _quantiles(model: TraceModel) -> Iterator[tuple[str, Sequence[float]]]:
    for kind, gaps in enumerate(model.arrivals.gaps):
        yield f"arrivals.gaps[{kind}]", gaps
    for name, joint in _joints(model):
        yield f"{name}.first", joint.first
        yield f"{name}.second", joint.second
    if model.talks:
        yield "talks.lags", model.talks.lags
        if model.talks.thinks:
            yield "talks.thinks", model.talks.thinks
    if model.sharing and model.sharing.continued:
        yield "sharing.continued.lags", model.sharing.continued.lags

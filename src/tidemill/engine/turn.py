"""One turn of an engine loop, whoever runs it: commands in, one step, what it gave out."""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.core.errors import TidemillError
from tidemill.engine.loop import EngineLoop
from tidemill.engine.wire import Abort, Command, Failure, Outbox, Reject, ResetCache

__all__ = ["turn"]


def turn(loop: EngineLoop, commands: Iterable[Command]) -> Outbox:
    """Apply the commands in their order, then run one step. A request that is refused is a Reject, not an error;
    what ``step`` raises is raised."""
    rejects = []
    for command in commands:
        if isinstance(command, Abort):
            loop.abort(command.request_id, command.choice)
            continue
        if isinstance(command, ResetCache):
            loop.reset_cache()
            continue
        try:
            loop.add(command.request)
        except TidemillError as error:
            rejects.append(Reject(command.request.request_id, Failure.of(error)))
    return Outbox(deltas=loop.step(), rejects=rejects, stats=loop.stats())

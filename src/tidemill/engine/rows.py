"""The rows of a step's plan: what the scheduler shares out in numbers, with token ids and options of the draws."""

from __future__ import annotations

from tidemill.core.step import NO_SEQUENCE, PlanRow, RowOptions, StepPlan
from tidemill.engine.roster import Roster
from tidemill.engine.sequences import EngineSequence
from tidemill.scheduling.padding import PaddedRow
from tidemill.scheduling.schedule import Schedule, Share

__all__ = ["step_plan"]


def step_plan(schedule: Schedule, roster: Roster, *, step: int, profile: bool) -> StepPlan:
    """The plan of a step: a row per share, in their order, and behind them those of padding."""
    shares = (_row(roster[share.sequence.id], share) for share in schedule.shares)
    return StepPlan(step=step, rows=(*shares, *map(_padded_row, schedule.padding)), profile=profile)


def _row(sequence: EngineSequence, share: Share) -> PlanRow:
    return PlanRow(
        sequence=share.sequence.id,
        tokens=sequence.span(share.start, share.end),
        start=share.start,
        block_tables=tuple(tuple(table) for table in share.sequence.tables),
        num_outputs=share.num_outputs,
        options=_options(sequence, share) if share.num_outputs else None,
        adapter=sequence.adapter,
    )


def _options(sequence: EngineSequence, share: Share) -> RowOptions | None:
    """What a row's draws depend on, and the tokens that it scores."""
    if not share.num_scored:
        return sequence.options(share.num_outputs)
    return sequence.scoring(share.start, share.num_scored, share.num_drawn)


def _padded_row(row: PaddedRow) -> PlanRow:
    """Tokens that mean nothing: what they cost does not depend on their ids."""
    return PlanRow(
        sequence=NO_SEQUENCE,
        tokens=(0,) * row.num_tokens,
        start=row.start,
        block_tables=tuple(tuple(table) for table in row.tables),
        num_outputs=row.num_outputs,
        options=RowOptions() if row.num_outputs else None,
    )

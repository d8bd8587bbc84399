"""A step on the executor, and what becomes of it when it fails.

A step that fails is run again in halves until the rows that fail by themselves are found: rows do not depend on each
other, so all others get what they would have got. ``MAX_FAILURES`` steps in a row of which every row fails are a broken
executor: the last failure is raised, and whoever runs the steps must let it die.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from tidemill.core.step import RowOutputs, StepPlan, StepResult
from tidemill.engine.meter import StepMeter
from tidemill.engine.profiler import StepProfiler
from tidemill.engine.rejection import RejectionSampling
from tidemill.executors.protocol import Executor
from tidemill.scheduling.kv.space import BlockCopy

__all__ = ["MAX_FAILURES", "Execution"]

_log = logging.getLogger(__name__)

MAX_FAILURES = 3
"""So many failed steps in a row are the last."""


class Execution:
    """Runs plans on an executor, one at a time."""

    def __init__(
        self,
        executor: Executor,
        *,
        meter: StepMeter,
        profiler: StepProfiler,
        kv_groups: Sequence[str],
        rejection: RejectionSampling | None = None,
    ) -> None:
        """``kv_groups``: the executor's names of the KV groups, in the order of the scheduler's. ``rejection``: settles
        the rows with proposals, instead of the executor's own draws."""
        self._rejection = rejection
        self._executor = executor
        self._meter = meter
        self._profiler = profiler
        self._kv_groups = tuple(kv_groups)
        self._failures = 0

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """Copy KV blocks, in this order."""
        for copy in copies:
            self._executor.copy_blocks(self._kv_groups[copy.group], [(copy.source, copy.target)])

    def run(self, plan: StepPlan, num_rows: int) -> tuple[list[RowOutputs | Exception], float]:
        """What each of the first ``num_rows`` rows gave, or the error that it fails with by itself, and the executor's
        seconds; what the others gave is dropped."""
        rows, seconds = self._attempt(plan)
        rows = rows[:num_rows]
        failed = [row for row in rows if isinstance(row, Exception)]
        self._failures = self._failures + 1 if failed and len(failed) == len(rows) else 0
        if self._failures >= MAX_FAILURES:
            raise failed[-1]
        self._meter.executor_seconds = seconds
        return rows, seconds

    def _attempt(self, plan: StepPlan) -> tuple[list[RowOutputs | Exception], float]:
        try:
            result = self._execute(plan)
        except Exception as error:
            if len(plan.rows) == 1:
                _log.exception("step %d fails with sequence %d in it", plan.step, plan.rows[0].sequence)
                return [error], 0.0
            _log.warning("step %d failed with %d sequences in it: trying halves", plan.step, len(plan.rows))
            middle = len(plan.rows) // 2
            first, seconds = self._attempt(replace(plan, rows=plan.rows[:middle]))
            second, more = self._attempt(replace(plan, rows=plan.rows[middle:]))
            return first + second, seconds + more
        return list(result.rows), result.seconds

    def _execute(self, plan: StepPlan) -> StepResult:
        self._meter.lap("plan")
        if self._rejection is not None and self._rejection.concerns(plan):
            result = self._rejection.run(self._executor, plan)
        else:
            self._executor.submit(plan)
            self._meter.lap("submit")
            result = self._executor.collect()
        self._meter.lap("collect", without=result.seconds)
        self._profiler.add(plan, result.profile)
        given = [len(outputs.tokens) + (outputs.vector is not None) for outputs in result.rows]
        asked = [row.num_outputs for row in plan.rows]
        if given != asked:
            raise RuntimeError(f"the executor gave {given} outputs per row where {asked} were asked for")
        return result

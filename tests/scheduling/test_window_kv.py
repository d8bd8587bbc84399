"""A whole engine over two KV groups: every slot that a window reads holds what its sequence put there.

The executor keeps, beside the blocks, what each sequence computed at each position. Before a row is computed it looks
up every position that the row's tokens may read, in every group, through the row's block tables.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.engine.scripted import START, VOCAB, HashExecutor, chain, request, run, tokens
from tests.support.guesses import Guess, Guessing
from tidemill.core.clock import ManualClock
from tidemill.core.config import SchedulerConfig
from tidemill.core.step import NO_BLOCK, PlanRow, RowOutputs
from tidemill.core.tokens import EngineInfo
from tidemill.engine.loop import EngineLoop
from tidemill.executors.protocol import KvPoolSpec
from tidemill.scheduling.draft_lengths import FixedLengths
from tidemill.scheduling.kv.space import KvGroupSpace, KvSpace
from tidemill.scheduling.scheduler import Scheduler


class WindowExecutor(HashExecutor):
    """A HashExecutor that checks all that a window of its group reads, and counts what was given back."""

    def __init__(self, windows: Sequence[int | None]) -> None:
        super().__init__()
        self.windows = windows
        self.given_back = 0
        self._computed: dict[tuple[int, int], bytes] = {}

    def _row(self, row: PlanRow) -> RowOutputs:
        state = self._computed[row.sequence, row.start - 1] if row.start else START
        for window, kv, table, size in zip(self.windows, self._kv, row.block_tables, self._sizes, strict=True):
            self.given_back += list(table).count(NO_BLOCK)
            first = 0 if window is None else max(0, row.start - window + 1)
            for position in range(first, row.start):
                found = kv[table[position // size]][position % size]
                assert found == self._computed[row.sequence, position], f"{row.sequence} at {position}"
        for position, token in enumerate(row.tokens, row.start):
            state = chain(state, token)
            self._computed[row.sequence, position] = state
        return super()._row(row)


class Wrong:
    """A proposer that is mostly wrong and always proposes as much as it may."""

    def propose(self, tokens: Sequence[int], limit: int) -> Sequence[int]:
        return [(tokens[-1] + step) % VOCAB for step in range(limit)]


def engine(
    full: int, window: int, *, proposer: Guess | None = None, **settings: object
) -> tuple[EngineLoop, WindowExecutor]:
    executor = WindowExecutor([None, 8])
    groups = [
        KvGroupSpace(num_blocks=full, block_size=4),
        KvGroupSpace(num_blocks=window, block_size=4, window=8),
    ]
    executor.allocate_kv([KvPoolSpec(group="g", num_blocks=g.num_blocks, block_size=4) for g in groups])
    space = KvSpace(groups)
    info = EngineInfo(
        model="hash", vocab_size=VOCAB, max_model_len=1000, kv_capacity_tokens=space.capacity_tokens, end_token_ids=()
    )
    scheduler = Scheduler(SchedulerConfig(**settings), space)  # type: ignore[arg-type]
    loop = EngineLoop(
        executor=executor,
        scheduler=scheduler,
        info=info,
        proposers=[Guessing(proposer)] if proposer else [],
        lengths=FixedLengths(4),
        clock=ManualClock(),
        seeds=lambda: 1,
        strict=True,
    )
    return loop, executor


REQUESTS = [request(f"r{n}", 5 + 17 * n, max_tokens=40, temperature=0.0) for n in range(4)]


@pytest.mark.parametrize(
    ("settings", "preempts"),
    [
        ({}, False),
        ({"max_step_tokens": 7}, False),
        ({"window": 6}, False),
        ({"full": 30, "max_step_tokens": 16}, True),
        ({"full": 30, "window": 6, "proposer": Wrong()}, True),
        ({"kv_reservation": "contiguous", "window": 12, "max_step_tokens": 16}, False),
        ({"chunked_prefill": False, "window": 12}, False),
    ],
)
def test_answers_do_not_depend_on_how_a_window_is_kept(settings: dict[str, object], preempts: bool) -> None:
    plain, _ = engine(full=200, window=200)
    expected = {key: tokens(deltas) for key, deltas in run(plain, *REQUESTS).items()}
    loop, executor = engine(**{"full": 200, "window": 40, **settings})  # type: ignore[arg-type]
    assert {key: tokens(deltas) for key, deltas in run(loop, *REQUESTS).items()} == expected
    assert {len(answer) for answer in expected.values()} == {40}
    assert executor.given_back > 100
    assert (loop.stats().preemptions_total > 0) is preempts

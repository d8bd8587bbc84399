"""Whatever ends a request, and whenever: its blocks come back. Many short requests with random ends, then nothing."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from tests.engine.scripted import HashExecutor, make_loop, request
from tidemill.core.step import StepPlan
from tidemill.engine.loop import EngineLoop

REQUESTS = 300
CONCURRENT = 8


class _Guesses:
    def propose(self, so_far: Sequence[int], limit: int) -> Sequence[int]:
        return [(so_far[-1] + j) % 7 for j in range(limit)]


def _fail_some(plan: StepPlan) -> None:
    """Every step with one of some sequences in it, once that has got somewhere: it is then run again in halves."""
    if any(row.sequence % 37 == 5 and row.start > 4 for row in plan.rows):
        raise RuntimeError("as it happens")


def _held(loop: EngineLoop) -> tuple[int, int]:
    """Held blocks, and those that are neither free, cached nor held."""
    stats = loop.stats()
    known = stats.kv_blocks_free + stats.kv_blocks_cached + stats.kv_blocks_held
    return stats.kv_blocks_held, stats.kv_blocks_total - known


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("proposed", [0, 3])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"prefix_cache": "off"},
        {"order": "priority,fair,srf", "order_patience": 0.5, "victim": "least-work", "preempted_blocks": "drop"},
    ],
    ids=["cache", "no cache", "ordered"],
)
def test_after_hundreds_of_requests_with_random_ends_every_block_is_back(
    settings: dict[str, Any], proposed: int, n: int
) -> None:
    numbers = random.Random(n + proposed)
    executor = HashExecutor(_fail_some)
    loop = make_loop(
        num_blocks=12, executor=executor, proposer=_Guesses(), max_proposed=proposed, max_step_tokens=32, **settings
    )
    open_ids: list[str] = []
    ended = 0
    for number in range(REQUESTS):
        name = f"r{number}"
        beginning = [numbers.randrange(3)] * numbers.randrange(40)
        made = request(
            name,
            [*beginning, *(numbers.randrange(1000) for _ in range(1 + numbers.randrange(20)))],
            max_tokens=1 + numbers.randrange(80),
            n=n,
            seed=number,
            stop_token_ids=tuple(range(0, 1000, 40)),
        )
        loop.add(made)
        open_ids.append(name)
        while len(open_ids) >= CONCURRENT:
            for delta in loop.step():
                ended += delta.finish_reason is not None
            assert _held(loop)[1] == 0
            if numbers.random() < 0.1:  # hung up: while it waits, reads or generates, or when it has ended
                loop.abort(numbers.choice(open_ids))
            open_ids = [one for one in open_ids if loop._roster.has_request(one)]
    while loop.has_work:
        ended += sum(delta.finish_reason is not None for delta in loop.step())
    loop.check_idle()
    loop.reset_cache()
    stats = loop.stats()
    assert stats.kv_blocks_free == stats.kv_blocks_total == 12
    reasons = stats.requests_finished
    assert sum(reasons.values()) == n * REQUESTS
    assert {"stop", "length", "abort", "error"} <= {reason for reason, count in reasons.items() if count}
    assert stats.preemptions_total > 0

"""The state of an engine in numbers, put together from who keeps them."""

from __future__ import annotations

from tidemill.core.tokens import EngineInfo, EngineStats
from tidemill.engine.adapters import Adapters
from tidemill.engine.draft_counts import DraftCounts
from tidemill.engine.memory_gauge import MemoryGauge
from tidemill.engine.meter import StepMeter
from tidemill.engine.profiler import StepProfiler
from tidemill.engine.roster import Roster
from tidemill.scheduling.scheduler import Scheduler

__all__ = ["engine_stats"]


def engine_stats(
    meter: StepMeter,
    drafts: DraftCounts,
    scheduler: Scheduler,
    profiler: StepProfiler,
    info: EngineInfo,
    *,
    load_seconds: float,
    packed_cache_bytes: int,
    memory: MemoryGauge,
    adapters: Adapters | None,
    roster: Roster,
) -> EngineStats:
    """The state of now; durations are those of the last step."""
    balances = scheduler.space.balances()
    cache, counts = scheduler.cache_counts, scheduler.counts
    users = ((sequence.adapter, sequence.counters.state) for sequence in roster)
    return EngineStats(
        max_adapters=0 if adapters is None else adapters.most,
        adapter_sequences={} if adapters is None else {name: dict(of) for name, of in adapters.usage(users).items()},
        steps=meter.steps,
        running=scheduler.num_running,
        waiting=scheduler.num_waiting,
        kv_blocks_total=sum(balance.total for balance in balances),
        kv_blocks_free=sum(balance.free for balance in balances),
        kv_blocks_held=sum(balance.held for balance in balances),
        kv_blocks_cached=sum(balance.cached for balance in balances),
        kv_block_size=scheduler.space.block_size,
        kv_format=info.kv_format,
        kv_bytes_per_token=info.kv_bytes_per_token,
        kv_fragmentation=scheduler.kv_fragmentation,
        prompt_tokens_total=meter.prompt_tokens,
        generation_tokens_total=meter.generation_tokens,
        padding_tokens_total=meter.padding_tokens,
        preemptions_total=counts.preemptions,
        preempted_tokens_total=counts.preempted_tokens,
        preempted_kept_tokens_total=cache.kept,
        places_taken_total=counts.places_taken,
        overtakes_total=counts.overtakes,
        longest_overtake_seconds=counts.longest_overtake,
        service_spread_tokens=counts.service_spread,
        hopeless_total=counts.hopeless,
        step_budget_tokens=counts.step_budget,
        most_running=counts.most_running,
        prefix_asked_tokens_total=cache.asked,
        prefix_hit_tokens_total=cache.hit,
        prefix_missed_again_tokens_total=cache.missed_again,
        jumped_tokens_total=drafts.jumped,
        draft_prefix_asked_tokens_total=drafts.asked,
        draft_prefix_hit_tokens_total=drafts.hit,
        drafts_total=dict(drafts.drafts),
        draft_tokens_total=dict(drafts.proposed),
        draft_accepted_tokens_total=dict(drafts.accepted),
        draft_tokens_at_total=dict(drafts.proposed_at),
        draft_accepted_at_total=dict(drafts.accepted_at),
        prefix_evicted_blocks_total=sum(pool.cache.num_evicted for pool in scheduler.space.pools),
        requests_finished=dict(meter.finished),
        step_seconds_total=meter.step_seconds_total,
        steps_by_seconds=tuple(meter.steps_by_seconds),
        step_seconds=meter.step_seconds,
        executor_seconds=meter.executor_seconds,
        step_tokens=meter.step_tokens,
        load_seconds=load_seconds,
        packed_cache_bytes=packed_cache_bytes,
        planned_bytes=memory.planned,
        resident_bytes=memory.resident,
        host_seconds=dict(meter.host),
        step_time_share=profiler.time_shares(),
        step_roof_share=profiler.roof_shares(),
        last_progress=meter.last_progress,
    )

"""An executor whose next token is a hash of every token before it, and an engine loop around it.

It keeps a KV of its own: a block holds the running hash at each of its positions. So a token that is lost, doubled,
out of order or written to another sequence's block changes everything that follows.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.support.guesses import Guess, Guessing
from tidemill.core.clock import Clock, ManualClock
from tidemill.core.config import EngineConfig, ModelConfig, SchedulerConfig
from tidemill.core.errors import ModelLoadError
from tidemill.core.mask import allows
from tidemill.core.sampling import SamplingOptions
from tidemill.core.step import PlanRow, RowOptions, RowOutputs, StepPlan, StepResult, TokenLogprob
from tidemill.core.tokens import EngineInfo, TokenDelta, TokenRequest
from tidemill.engine.loop import EngineLoop
from tidemill.engine.memory_gauge import MemoryGauge
from tidemill.engine.prefix import BlockKeys
from tidemill.engine.profiler import StepProfiler
from tidemill.executors.protocol import KvPoolSpec
from tidemill.executors.roof import Roof
from tidemill.graph.kv_format import KvFormat
from tidemill.scheduling.criteria import criteria_of
from tidemill.scheduling.draft_lengths import FixedLengths
from tidemill.scheduling.kv.space import KvGroupSpace, KvSpace
from tidemill.scheduling.scheduler import Scheduler

VOCAB = 1000
END = 7
"""The model's end token: about one draw in a thousand."""
START = b"start"


def chain(state: bytes, token: int) -> bytes:
    """The hash after one more token."""
    return blake2b(state + token.to_bytes(4, "little"), digest_size=8).digest()


def draw(state: bytes, position: int, options: RowOptions, mask: bytes | None = None) -> int:
    """The token that follows at ``position``: depends on every token before it and on everything the draw has, and is
    the first allowed one from there on."""
    key = repr((position, replace(options, masks=None))).encode()
    first = int.from_bytes(blake2b(state + key, digest_size=4).digest(), "little")
    after = ((first + step) % VOCAB for step in range(VOCAB))
    return next((token for token in after if allows(mask, token)), 0)


class HashExecutor:
    """Implements Executor. ``hook`` sees each plan before it is computed and may raise or act."""

    def __init__(self, hook: Callable[[StepPlan], None] | None = None) -> None:
        self.hook = hook or (lambda _: None)
        self.plans: list[StepPlan] = []
        self.closed = False
        self.copied = 0
        self.progress = 0
        self._kv: list[dict[int, list[bytes]]] = []
        self._sizes: list[int] = []
        self._plan: StepPlan | None = None

    @property
    def description(self) -> str:
        return "hash"

    @property
    def cached_bytes(self) -> int:
        return 0

    def allocate_kv(self, pools: Sequence[KvPoolSpec], kv_format: KvFormat | None = None) -> None:  # noqa: ARG002
        self._sizes = [pool.block_size for pool in pools]
        self._kv = [{block: [b""] * pool.block_size for block in range(pool.num_blocks)} for pool in pools]

    def submit(self, plan: StepPlan) -> None:
        assert self._plan is None, "one plan in flight"
        self.plans.append(plan)
        self._plan = plan

    def collect(self) -> StepResult:
        plan, self._plan = self._plan, None
        assert plan is not None
        self.hook(plan)
        return StepResult(step=plan.step, rows=tuple(self._row(row) for row in plan.rows), seconds=0.001)

    def measure_roof(self, threads: int | None = None, seconds: float = 1.0) -> Roof:  # noqa: ARG002
        return Roof(threads=threads or 1, read=1e9, floats=1e9, integers=1e9)

    def copy_blocks(self, group: str, pairs: Sequence[tuple[int, int]]) -> None:
        assert self._plan is None, "no plan in flight"
        kv = self._kv[int(group.removeprefix("g"))]
        for source, target in pairs:
            kv[target] = list(kv[source])
            self.copied += 1

    def read_blocks(self, group: str, blocks: Sequence[int]) -> bytes:
        raise NotImplementedError

    def write_blocks(self, group: str, blocks: Sequence[int], data: bytes) -> None:
        raise NotImplementedError

    def logits(self, plan: StepPlan) -> Mapping[int, npt.NDArray[np.float32]]:
        raise NotImplementedError

    def close(self) -> None:
        self.closed = True

    def _row(self, row: PlanRow) -> RowOutputs:
        states = []
        state = self._read(row, row.start - 1) if row.start else START
        for position, token in enumerate(row.tokens, row.start):
            state = chain(state, token)
            self._write(row, position, state)
            states.append((position, state))
        if not row.num_outputs:
            return RowOutputs()
        assert row.options is not None
        masks = row.options.masks or (None,) * row.num_outputs
        options = replace(row.options, targets=(), logprobs=None)
        ends = states[-row.num_outputs :]
        scored = len(row.options.targets)
        tokens = [
            *row.options.targets,
            *(
                draw(state, position, options, mask)
                for (position, state), mask in zip(ends[scored:], masks[scored:], strict=True)
            ),
        ]
        logprobs = tuple(
            TokenLogprob(token=token, logprob=-(1 + token + state[0]) / VOCAB)
            for token, (_, state) in zip(tokens, ends, strict=True)
        )
        return RowOutputs(tokens=tuple(tokens), logprobs=None if row.options.logprobs is None else logprobs)

    def _read(self, row: PlanRow, position: int) -> bytes:
        seen = {
            kv[table[position // size]][position % size]
            for kv, table, size in zip(self._kv, row.block_tables, self._sizes, strict=True)
        }
        assert len(seen) == 1, "the groups disagree"
        return seen.pop()

    def _write(self, row: PlanRow, position: int, state: bytes) -> None:
        for kv, table, size in zip(self._kv, row.block_tables, self._sizes, strict=True):
            kv[table[position // size]][position % size] = state


def make_loop(
    *,
    num_blocks: int = 64,
    block_size: int = 16,
    groups: int = 1,
    max_model_len: int = 4096,
    kv_capacity_tokens: int | None = None,
    executor: HashExecutor | None = None,
    proposer: Guess | None = None,
    max_proposed: int = 0,
    clock: Clock | None = None,
    end_token_ids: tuple[int, ...] = (END,),
    seeds: Callable[[], int] = lambda: 4711,
    profiler: StepProfiler | None = None,
    copies: bool = True,
    grammars: Any = None,
    keys: BlockKeys | None = None,
    kv_events: Any = None,
    memory: MemoryGauge | None = None,
    **scheduler: object,
) -> EngineLoop:
    """A strict loop over a HashExecutor; further names are settings of SchedulerConfig."""
    executor = executor or HashExecutor()
    executor.allocate_kv(
        [KvPoolSpec(group=f"g{group}", num_blocks=num_blocks, block_size=block_size) for group in range(groups)]
    )
    space = KvSpace([KvGroupSpace(num_blocks=num_blocks, block_size=block_size)] * groups)
    return EngineLoop(
        executor=executor,
        scheduler=Scheduler(SchedulerConfig(**scheduler), space, clock=clock, copies=copies),  # type: ignore[arg-type]
        info=EngineInfo(
            model="hash",
            vocab_size=VOCAB,
            max_model_len=max_model_len,
            kv_capacity_tokens=kv_capacity_tokens or space.capacity_tokens,
            end_token_ids=end_token_ids,
            strategies=("prefix-cache",) if scheduler.get("prefix_cache", "on") == "on" else (),
            order=criteria_of(str(scheduler.get("order", "fcfs"))),
            executor=executor.description,
        ),
        proposers=[Guessing(proposer)] if proposer else [],
        lengths=FixedLengths(max_proposed),
        clock=clock or ManualClock(),
        seeds=seeds,
        profiler=profiler,
        strict=True,
        kv_groups=[f"g{group}" for group in range(groups)],
        grammars=grammars,
        keys=keys,
        kv_events=kv_events,
        memory=memory,
    )


def request(name: str, prompt: int | Sequence[int], **sampling: object) -> TokenRequest:
    """A request; an integer prompt is that many tokens, different for each name."""
    if isinstance(prompt, int):
        first = int.from_bytes(blake2b(name.encode(), digest_size=2).digest(), "little")
        prompt = [(first + 31 * i) % VOCAB for i in range(prompt)]
    return TokenRequest(request_id=name, prompt=prompt, sampling=SamplingOptions(**sampling))  # type: ignore[arg-type]


Answers = dict[tuple[str, int], list[TokenDelta]]


def run(loop: EngineLoop, *requests: TokenRequest, max_steps: int = 20_000) -> Answers:
    """Add the requests, step until nothing is left, and return the deltas of each (request id, choice)."""
    for one in requests:
        loop.add(one)
    answers: Answers = {}
    steps = 0
    while loop.has_work:
        for delta in loop.step():
            answers.setdefault((delta.request_id, delta.choice), []).append(delta)
        steps += 1
        assert steps < max_steps, "it does not end"
    loop.check_idle()
    return answers


def tokens(deltas: Sequence[TokenDelta]) -> list[int]:
    """All tokens of a choice's deltas."""
    return [token for delta in deltas for token in delta.tokens]


def config(path: str = "hash", *, stuck_seconds: float = 30.0, **scheduler: object) -> EngineConfig:
    """An engine configuration for ``make``."""
    return EngineConfig(
        model=ModelConfig(path=path),
        scheduler=SchedulerConfig(**scheduler),  # type: ignore[arg-type]
        stuck_seconds=stuck_seconds,
    )


def make(config: EngineConfig) -> EngineLoop:
    """The loop factory of the process tests. The model's path says what goes wrong: ``hash`` nothing."""
    hook: Callable[[StepPlan], None] = lambda _: time.sleep(0.002)  # noqa: E731
    match config.model.path:
        case "missing":
            raise ModelLoadError("missing: no such file", param="model")
        case "bug":
            raise ZeroDivisionError("a bug")
        case "dies while loading":
            os.kill(os.getpid(), signal.SIGKILL)
        case "raises":
            hook = _raise
        case "loads for ever":
            time.sleep(3600)
        case "hangs":
            hook = lambda _: time.sleep(3600)  # noqa: E731
        case "goes down with 666":
            hook = _segfault_at_666
    if config.model.path.startswith("slow:"):
        return make_loop(executor=SlowExecutor(float(config.model.path.removeprefix("slow:"))))
    max_model_len = config.model.max_model_len or 4096
    if config.model.path.startswith("shrinks:") and config.model.max_model_len is None:
        starts = Path(config.model.path.removeprefix("shrinks:"))
        starts.write_text(starts.read_text() + "+" if starts.exists() else "+")
        max_model_len = 100 - len(starts.read_text())
    scheduler = {item.name: getattr(config.scheduler, item.name) for item in fields(config.scheduler)}
    return make_loop(executor=HashExecutor(hook), max_model_len=max_model_len, **scheduler)


class SlowExecutor(HashExecutor):
    """Its steps take long, and go on all the while."""

    def __init__(self, seconds: float) -> None:
        super().__init__(self._work)
        self._seconds = seconds

    def _work(self, _: StepPlan) -> None:
        end = time.monotonic() + self._seconds
        while time.monotonic() < end:
            time.sleep(0.01)
            self.progress += 1


def _segfault_at_666(plan: StepPlan) -> None:
    if any(666 in row.tokens for row in plan.rows):
        os.kill(os.getpid(), signal.SIGSEGV)


def _raise(_: StepPlan) -> None:
    raise OSError("broken for good")

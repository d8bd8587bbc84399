"""What a step costs outside the executor, in the real engine loop: from the plan to text.

One turn as the engine process makes it, without the counters that few turns send along, and what the server does with
its deltas, on one thread, so that every part can be timed: draft, schedule, plan, submit, collect, commit (the loop's
own meter), emit (pack and parse the message), detokenise (text of each stream).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tidemill.core.config import EngineConfig
from tidemill.core.sampling import SamplingOptions
from tidemill.core.tokens import TokenRequest
from tidemill.engine.factory import build_loop
from tidemill.engine.loop import EngineLoop
from tidemill.engine.turn import Turns
from tidemill.engine.wire import Add, Outbox, frame, parse_from_engine
from tidemill.frontend.choice import ChoiceText
from tidemill.models.loading import load_text_source
from tidemill.text.detokenizer import IncrementalDetokenizer
from tidemill.text.tokenizer import build_tokenizer

__all__ = ["HostTime", "measure_host"]

_CONTEXT = 256
_STEPS = 64
_SPARE = 16
"""Tokens that a stream generates while the others' prompts are still being read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTime:
    """Medians of a decode step of so many streams, in seconds."""

    streams: int
    step: float
    """The whole step, from one turn to the next."""
    parts: dict[str, float]
    """What of it was not the executor's, by part."""

    @property
    def host(self) -> float:
        """All parts together."""
        return sum(self.parts.values())

    @property
    def share(self) -> float:
        """Their share of the step."""
        return self.host / self.step


def measure_host(config: EngineConfig, streams: Sequence[int], *, most: int) -> list[HostTime]:
    """Measure it for each of these numbers of streams, on one loaded model: 64 steps at 256 tokens, or as many as a
    model has positions for (``most``)."""
    context = min(_CONTEXT, most // 2)
    steps = min(_STEPS, most - context - _SPARE)
    scheduler = replace(config.scheduler, max_running=max(config.scheduler.max_running, *streams))
    model = replace(config.model, max_model_len=context + steps + _SPARE)
    loop = build_loop(replace(config, model=model, scheduler=scheduler))
    try:
        tokenizer = build_tokenizer(load_text_source(config.model.path))
        return [_measure(loop, lambda: IncrementalDetokenizer(tokenizer), count, context, steps) for count in streams]
    finally:
        loop.close()


def _measure(
    loop: EngineLoop, detokenizer: Callable[[], IncrementalDetokenizer], streams: int, context: int, steps: int
) -> HostTime:
    texts = {f"bench-{stream}": ChoiceText(detokenizer=detokenizer()) for stream in range(streams)}
    vocab = loop.info.vocab_size
    commands = [Add(_request(name, at, context, steps + _SPARE, vocab)) for at, name in enumerate(texts)]
    turns = Turns(loop)
    turns.turn(commands)
    whole: list[float] = []
    parts: dict[str, list[float]] = {}
    while loop.has_work and len(whole) < steps:
        begin = time.perf_counter()
        before = loop.stats().host_seconds
        outbox = turns.turn([], stats=False)
        packed = time.perf_counter()
        received = parse_from_engine(frame(outbox)[4:])
        emitted = time.perf_counter()
        assert isinstance(received, Outbox)
        for delta in received.deltas:
            texts[delta.request_id].push(delta)
        end = time.perf_counter()
        if len(received.deltas) < streams or loop.stats().step_tokens > streams:
            continue  # prompts are still being read
        after = loop.stats().host_seconds
        times = {part: seconds - before.get(part, 0.0) for part, seconds in after.items()}
        times |= {"emit": emitted - packed, "detokenise": end - emitted}
        for part, seconds in times.items():
            parts.setdefault(part, []).append(seconds)
        whole.append(end - begin)
    for name in texts:
        loop.abort(name)
    return HostTime(
        streams=streams,
        step=statistics.median(whole),
        parts={part: statistics.median(times) for part, times in parts.items()},
    )


def _request(name: str, number: int, context: int, tokens: int, vocab: int) -> TokenRequest:
    prompt = [(1 + number * 101 + i * i * 7 + i) % vocab for i in range(context)]
    sampling = SamplingOptions(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    return TokenRequest(request_id=name, prompt=prompt, sampling=sampling)

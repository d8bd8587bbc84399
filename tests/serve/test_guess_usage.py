"""What ``usage`` says of guesses."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from tests.support.scripted_engine import ScriptedEngine
from tidemill.core.tokens import TokenDelta, TokenRequest


def guessing(engine: ScriptedEngine, right: int, wrong: int) -> None:
    """Make the engine say so of each delta, as it does, counted from the choice's beginning."""
    generate = engine.generate

    async def guessed(request: TokenRequest) -> AsyncIterator[TokenDelta]:
        places: Counter[int] = Counter()
        async for delta in generate(request):
            places[delta.choice] += 1
            place = places[delta.choice]
            yield replace(delta, num_accepted=right * place, num_rejected=wrong * place)

    engine.generate = guessed  # type: ignore[method-assign]


async def test_usage_says_how_many_guesses_were_right_and_wrong(http: Any) -> None:
    async with http([65, 66]) as served:
        plain = (await served.chat()).json()["usage"]
        assert "completion_tokens_details" not in plain
        guessing(served.engine, 2, 1)
        whole = (await served.chat(n=2)).json()["usage"]["completion_tokens_details"]
        assert whole["accepted_prediction_tokens"] == 2 * whole["rejected_prediction_tokens"] > 0
        stream = (await served.chat(stream=True, stream_options={"include_usage": True})).text
        last = json.loads(stream.strip().split("\n\n")[-2].removeprefix("data: "))
        one = last["usage"]["completion_tokens_details"]
        assert {name: 2 * value for name, value in one.items()} == whole

"""The token ids of a prompt, as a replica counts them: it is asked (/tokenize), for a bounded time, and its answers are
kept. Nobody is asked where nobody's KV events could be looked up with them."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from tidemill.core.clock import Clock
from tidemill.gateway.routing.policies import READ_PREFIXES
from tidemill.gateway.routing.prompt import Prompt
from tidemill.gateway.upstream import Upstream

__all__ = ["PromptTokens"]

_ENGINES: Final = frozenset({"tidemill", "vllm"})
"""Those that have /tokenize for conversations."""
_MOST_TOKENS: Final = 2**21
"""Kept, of all prompts together: 8 MB."""
_SHUNNED_SECONDS: Final = 1.0
"""A replica that did not answer in time is not asked again for so long."""
_DECIDES: Final = {
    "/v1/chat/completions": (
        *("messages", "tools", "chat_template_kwargs", "add_generation_prompt", "continue_final_message"),
        *("reasoning_effort", "chat_template", "documents"),
    ),
    "/v1/completions": ("prompt", "add_special_tokens"),
}
"""By path, the fields of a request that its prompt's tokens depend on."""
_SALTED: Final = "cache_salt"
"""Blocks with one are not others', and events of ours do not tell them apart."""


class _Tokens(msgspec.Struct):
    tokens: list[int]


class PromptTokens:
    """Belongs to one event loop."""

    def __init__(self, clock: Clock, *, most_tokens: int = _MOST_TOKENS) -> None:
        self._clock = clock
        self._most = most_tokens
        self._kept: OrderedDict[tuple[str, bytes], array[int]] = OrderedDict()
        self._tokens = 0
        self._shunned: dict[Upstream, float] = {}
        """Until when; of the one asked last that did not answer, and of others that may have left since."""

    async def of(
        self, path: str, body: bytes, model: str, policy: str, upstreams: Sequence[Upstream], *, seconds: float
    ) -> Prompt | None:
        """None: nobody needs them, or nobody said in time."""
        serving = [one for one in upstreams if one.serves(model) and one.healthy]
        if policy not in READ_PREFIXES or len(serving) < 2 or path not in _DECIDES:
            return None
        told = [one.replica.told for one in serving if one.replica.told is not None]
        if not any(one.complete or len(one) for one in told):
            return None
        question = _question(path, body, model)
        if question is None:
            return None
        if isinstance(question, array):
            return Prompt(question, model) if question else None
        found = self._kept.get((model, question))
        if found is None:
            found = await self._ask(question, serving, seconds)
            if found is None:
                return None
            self._keep((model, question), found)
        else:
            self._kept.move_to_end((model, question))
        return Prompt(found, model)

    async def _ask(self, question: bytes, serving: Sequence[Upstream], seconds: float) -> array[int] | None:
        now = self._clock.now()
        self._shunned = {one: until for one, until in self._shunned.items() if until > now}
        able = [one for one in serving if one.own.engine in _ENGINES and one not in self._shunned]
        if not able:
            return None
        asked = min(able, key=lambda one: one.replica.in_flight)
        try:
            status, answer = await asked.ask("/tokenize", question, seconds=seconds)
            tokens = array("I", msgspec.json.decode(answer, type=_Tokens).tokens) if status == 200 else None
        except (OSError, TimeoutError):
            self._shunned[asked] = self._clock.now() + _SHUNNED_SECONDS
            return None
        except (msgspec.DecodeError, UnicodeDecodeError, OverflowError):
            return None
        return tokens or None

    def _keep(self, key: tuple[str, bytes], tokens: array[int]) -> None:
        # The question is as long as its answer, about: four bytes are a token.
        self._kept[key] = tokens
        self._tokens += len(tokens) + len(key[1]) // 4
        while self._tokens > self._most and self._kept:
            (_, old), gone = self._kept.popitem(last=False)
            self._tokens -= len(gone) + len(old) // 4


def _question(path: str, body: bytes, model: str) -> bytes | array[int] | None:
    """What to ask; the tokens themselves, where the request has them; None: they would not help."""
    try:
        fields: dict[str, Any] = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        if _SALTED in fields:
            return None
        asked = {name: fields[name] for name in _DECIDES[path] if name in fields}
        prompt = msgspec.json.decode(asked["prompt"]) if "prompt" in asked else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if path == "/v1/completions":
        if isinstance(prompt, list):
            return _ids(prompt)
        if not isinstance(prompt, str):
            return None
    return msgspec.json.encode({"model": model, **asked} if model else asked)


def _ids(prompt: list[object]) -> array[int] | None:
    """A prompt that is token ids; several prompts in one request are not looked up."""
    if not all(type(one) is int and 0 <= one < 2**32 for one in prompt):
        return None
    return array("I", prompt)  # type: ignore[arg-type]

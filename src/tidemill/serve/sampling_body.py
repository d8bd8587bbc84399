"""Fields that every request for an answer has, whatever its API: how tokens are drawn, and where the answer ends."""

from __future__ import annotations

import re
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, field_validator

from tidemill.core.errors import InvalidRequest
from tidemill.core.grammar import Grammar
from tidemill.core.quoted import quoted
from tidemill.core.sampling import MAX_STOP_STRINGS, MAX_TOP_LOGPROBS, SamplingOptions
from tidemill.serve.deadline import seconds_within
from tidemill.serve.values import shown

__all__ = ["MAX_CACHE_SALT", "MAX_PRIORITY", "SamplingBody", "limit_within", "logprobs_within", "priority_within"]

MAX_PRIORITY: Final = 100
MAX_CACHE_SALT: Final = 256
"""Characters."""
_TOKEN_KEY: Final = re.compile(r"0|[1-9][0-9]{0,9}")


class SamplingBody(BaseModel):
    """None is absent."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    model: str | None = None
    stream: bool = False
    user: str | None = None
    timeout: float | None = None
    cache_salt: str = ""
    priority: int = 0
    expected_output_tokens: int | None = None
    strategies: Any = Field(default_factory=dict)
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[str, float] = {}
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    min_tokens: int = 0
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] = []

    @field_validator("stop", mode="before")
    @classmethod
    def _stop(cls, value: Any) -> tuple[str, ...]:
        strings = [value] if isinstance(value, str) else value
        if not isinstance(strings, list):
            raise InvalidRequest("stop must be a string or a list of strings", param="stop")
        if len(strings) > MAX_STOP_STRINGS:
            raise InvalidRequest(f"stop has {len(strings)} strings; at most {MAX_STOP_STRINGS}", param="stop")
        for index, string in enumerate(strings):
            if not isinstance(string, str) or not string:
                place = "stop" if isinstance(value, str) else f"stop[{index}]"
                raise InvalidRequest(f"{place} must be a non-empty string, not {shown(string)}", param=place)
        return tuple(strings)

    @field_validator("timeout")
    @classmethod
    def _timeout(cls, value: float | None) -> float | None:
        return None if value is None else seconds_within(value, "timeout", value)

    @field_validator("cache_salt")
    @classmethod
    def _cache_salt(cls, value: str) -> str:
        if len(value) > MAX_CACHE_SALT:
            raise InvalidRequest(
                f"cache_salt has {len(value)} characters; at most {MAX_CACHE_SALT}", param="cache_salt"
            )
        return value

    @field_validator("priority")
    @classmethod
    def _priority(cls, value: int) -> int:
        return priority_within(value)

    @field_validator("expected_output_tokens")
    @classmethod
    def _expected_output_tokens(cls, value: int | None) -> int | None:
        limit_within("expected_output_tokens", value)
        return value

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _logit_bias(cls, value: Any) -> Any:
        for key in value if isinstance(value, dict) else ():
            if not _TOKEN_KEY.fullmatch(key):
                raise InvalidRequest(
                    f"logit_bias: keys must be token ids in decimal, not {shown(key)}", param="logit_bias"
                )
        return value

    def options(
        self,
        *,
        max_tokens: int | None,
        logprobs: int | None,
        grammar: Grammar | None,
        n: int = 1,
        prompt_logprobs: int | None = None,
    ) -> SamplingOptions:
        """The options of the draw; ranges that depend on the model are checked behind the backend."""
        return SamplingOptions(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias={int(key): bias for key, bias in self.logit_bias.items()},
            seed=self.seed,
            n=n,
            max_tokens=max_tokens,
            stop=self.stop,
            stop_token_ids=tuple(self.stop_token_ids),
            ignore_eos=self.ignore_eos,
            min_tokens=self.min_tokens,
            allowed_token_ids=None if self.allowed_token_ids is None else tuple(self.allowed_token_ids),
            bad_words=tuple(self.bad_words),
            prompt_logprobs=prompt_logprobs,
            grammar=grammar,
            logprobs=logprobs,
        )


def priority_within(value: int) -> int:
    """The priority, if it is in range; InvalidRequest otherwise."""
    if not -MAX_PRIORITY <= value <= MAX_PRIORITY:
        raise InvalidRequest(
            f"priority must be between {-MAX_PRIORITY} and {MAX_PRIORITY}, not {quoted(value)}", param="priority"
        )
    return value


def limit_within(name: str, value: int | None) -> None:
    """Raise InvalidRequest for a number of tokens that cannot be a limit."""
    if value is not None and not 1 <= value < 2**31:
        raise InvalidRequest(f"{name} must be between 1 and {2**31 - 1}, not {quoted(value)}", param=name)


def logprobs_within(name: str, value: int) -> None:
    """Raise InvalidRequest for a number of most likely tokens that cannot be given."""
    if not 0 <= value <= MAX_TOP_LOGPROBS:
        raise InvalidRequest(f"{name} must be between 0 and {MAX_TOP_LOGPROBS}, not {quoted(value)}", param=name)

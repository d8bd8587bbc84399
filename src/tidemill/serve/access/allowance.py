"""What one key has left of its limits, and the bill of one of its requests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tidemill.core.clock import Clock
from tidemill.core.errors import InvalidRequest, RateLimited
from tidemill.serve.access.bucket import Bucket
from tidemill.serve.access.key_file import Limits

__all__ = ["Allowance", "Bill"]

NO_LIMITS: Final = Limits()


class Allowance:
    """The limits of one key, and what of them is in use. Lives as long as the server, through reloads of the file."""

    def __init__(self, limits: Limits, clock: Clock) -> None:
        self._clock = clock
        self._limits = limits
        self._requests = _bucket(limits.requests_per_minute, clock)
        self.tokens = _bucket(limits.tokens_per_minute, clock)
        self.running = 0

    def change(self, limits: Limits) -> None:
        """Other limits from now on. What has been used stays used."""
        self._limits = limits
        self._requests = _resized(self._requests, limits.requests_per_minute, self._clock)
        self.tokens = _resized(self.tokens, limits.tokens_per_minute, self._clock)

    @property
    def limits(self) -> Limits:
        """Of now."""
        return self._limits

    @contextmanager
    def counted(self) -> Iterator[Bill]:
        """One request that is counted elsewhere, but for its tokens."""
        bill = Bill(self)
        try:
            yield bill
        finally:
            bill.close()

    @contextmanager
    def request(self) -> Iterator[Bill]:
        """One request, from its headers to its end. Raises RateLimited, and then nothing has been counted."""
        most = self._limits.concurrent_requests
        if most is not None and self.running >= most:
            raise RateLimited(f"this key has {self.running} requests open; its limit is {most} at once")
        if self._requests is not None:
            wait = self._requests.wait(1)
            if wait > 0:
                raise RateLimited(
                    f"this key has used its {self._requests.per_minute} requests per minute", retry_after=wait
                )
            self._requests.take(1)
        self.running += 1
        bill = Bill(self)
        try:
            yield bill
        finally:
            self.running -= 1
            bill.close()


class Bill:
    """Implements Account for one request."""

    def __init__(self, allowance: Allowance) -> None:
        self._allowance = allowance
        self._reserved = 0
        self.prompt_tokens = 0
        self.output_tokens = 0

    def reserve(self, *, prompt: int, output: int, limit_field: str | None) -> None:
        """See Account."""
        bucket = self._allowance.tokens
        if bucket is None:
            return
        most, asked = bucket.per_minute, prompt + output
        if prompt >= most:
            raise InvalidRequest(
                f"the prompt has {prompt} tokens, and this key has {most} per minute for prompts and answers",
                param="prompt",
            )
        if asked > most and limit_field is not None:
            raise InvalidRequest(
                f"the prompt has {prompt} tokens and {limit_field} asks for {output} at most, and this key has {most} "
                "per minute",
                param=limit_field,
            )
        amount = min(asked, most)
        wait = bucket.wait(amount)
        if wait > 0:
            raise RateLimited(
                f"this key has used its {most} tokens per minute; this request sets {amount} aside, its prompt and "
                "the most it may generate",
                retry_after=wait,
            )
        bucket.take(amount)
        self._reserved = amount

    def spend(self, *, prompt: int, output: int) -> None:
        """See Account."""
        self.prompt_tokens, self.output_tokens = prompt, output

    def close(self) -> None:
        """Give back what was set aside and not spent; what was spent beyond it is owed."""
        if self._allowance.tokens is not None and self._reserved:
            self._allowance.tokens.take(self.prompt_tokens + self.output_tokens - self._reserved)
        self._reserved = 0


def _bucket(per_minute: int | None, clock: Clock) -> Bucket | None:
    return None if per_minute is None else Bucket(per_minute, clock)


def _resized(bucket: Bucket | None, per_minute: int | None, clock: Clock) -> Bucket | None:
    if bucket is None or per_minute is None:
        return _bucket(per_minute, clock)
    bucket.resize(per_minute)
    return bucket

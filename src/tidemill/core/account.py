"""Who pays for the tokens of one request. The frontend says how many it may become and how many it became."""

from __future__ import annotations

from typing import Final, Protocol

__all__ = ["NO_ACCOUNT", "Account"]


class Account(Protocol):
    """The bill of one request, made where it came in. What is reserved and not spent is given back at its end."""

    def reserve(self, *, prompt: int, output: int, limit_field: str | None) -> None:
        """Set aside tokens before the engine is asked: of the prompts, and the most that all choices can have.

        ``limit_field`` is the field that set ``output``, None where it is just the room that is left: then no more is
        set aside than the account ever holds. Raises RateLimited, and InvalidRequest for what could never be paid.
        """
        ...

    def spend(self, *, prompt: int, output: int) -> None:
        """Say what has been computed; once per request, or not at all."""
        ...


class _NoAccount:
    def reserve(self, *, prompt: int, output: int, limit_field: str | None) -> None:
        pass

    def spend(self, *, prompt: int, output: int) -> None:
        pass


NO_ACCOUNT: Final[Account] = _NoAccount()
"""Nobody counts."""

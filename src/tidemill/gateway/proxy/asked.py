"""What routing wants to know of a request, read from its body without building what is in it."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from tidemill.core.errors import InvalidRequest
from tidemill.gateway.routing.blocks import text_blocks
from tidemill.gateway.routing.work import Work

__all__ = ["Asked", "read_asked"]

_BLOCK_BYTES: Final = 256
_BLOCK_TOKENS: Final = 64
"""A token is presumed to have four bytes; estimates need no more, as speeds are measured in the same tokens."""
_EMPTY: Final = msgspec.Raw(b"")


class Asked(msgspec.Struct, frozen=True):
    """Fields of the OpenAI and Anthropic APIs; a field that has a strange type is the replica's to refuse."""

    model: Any = ""
    stream: Any = False
    messages: msgspec.Raw = _EMPTY
    prompt: msgspec.Raw = _EMPTY
    input: msgspec.Raw = _EMPTY
    tools: msgspec.Raw = _EMPTY
    system: msgspec.Raw = _EMPTY
    instructions: msgspec.Raw = _EMPTY
    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None
    priority: Any = 0
    prompt_cache_key: Any = None

    @property
    def name(self) -> str:
        """Of the model; empty: none was named."""
        return self.model if isinstance(self.model, str) else ""

    @property
    def urgency(self) -> int:
        """Lower is sooner."""
        return self.priority if isinstance(self.priority, int) else 0

    @property
    def most_tokens(self) -> int | None:
        """That the answer may have."""
        given = (self.max_completion_tokens, self.max_tokens, self.max_output_tokens)
        return next((one for one in given if isinstance(one, int) and one > 0), None)

    def work(self, *, expected_tokens: float, session: str | None, tenant: str) -> Work:
        """For the router."""
        text = b"".join(
            map(bytes, (self.tools, self.system, self.instructions, self.messages, self.prompt, self.input))
        )
        key = self.prompt_cache_key
        most = self.most_tokens
        return Work(
            tokens=max(1, len(text) * _BLOCK_TOKENS // _BLOCK_BYTES),
            output_tokens=int(expected_tokens if most is None else min(most, expected_tokens)),
            blocks=text_blocks(text, _BLOCK_BYTES, salt=f"{tenant}\0{self.name}"),
            block_tokens=_BLOCK_TOKENS,
            model=self.name,
            session=session or (key if isinstance(key, str) else None),
            tenant=tenant,
            whole=self.stream is not True,
        )


_decode: Final = msgspec.json.Decoder(Asked).decode


def read_asked(body: bytes) -> Asked:
    """Raises InvalidRequest for what is no JSON object."""
    try:
        return _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not a JSON object: {error}") from error

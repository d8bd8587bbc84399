"""Text rules made up for tests: one token per byte, and whatever longer pieces a test asks for."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from typing import Any

from tidemill.core.embedding import Embedding
from tidemill.core.errors import TemplateRejected
from tidemill.core.requests import Message
from tidemill.core.tokens import EngineInfo
from tidemill.text.answers.form import AnswerForm

__all__ = ["BOS", "END", "ToyText", "toy_info"]

BOS = 256
END = 257
_FIRST_PIECE = 258


class ToyText:
    """Implements the frontend's Text. Chats are rendered as ``<role>content\\n`` and end with ``<assistant>``."""

    chat_problem: str | None = None
    answer_form = AnswerForm()
    """How answers are told apart; a test may give another one."""

    def __init__(self, pieces: Sequence[str | bytes] = (), *, add_bos: bool = False, add_end: bool = False) -> None:
        coded = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
        self._bytes = [bytes([i]) for i in range(256)] + [b"", b""] + coded
        self._add_bos = add_bos
        self._add_end = add_end

    @property
    def vocab_size(self) -> int:
        return len(self._bytes)

    def id_of(self, piece: str | bytes) -> int:
        """The id of one of the pieces."""
        wanted = piece.encode() if isinstance(piece, str) else piece
        return self._bytes.index(wanted, _FIRST_PIECE)

    @property
    def ending(self) -> list[int]:
        return [END] * self._add_end

    def encode(self, text: str, *, bare: bool = False) -> list[int]:
        ids = list(text.encode())
        return ids if bare else [BOS] * self._add_bos + ids + self.ending

    def encode_chat(
        self,
        messages: Sequence[Message],
        options: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        continues: bool = False,
    ) -> list[int]:
        return list(self.render_chat(messages, options, tools, continues=continues).encode())

    def render_chat(
        self,
        messages: Sequence[Message],
        options: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        continues: bool = False,
    ) -> str:
        if messages[0]["role"] == "assistant":
            raise TemplateRejected("a conversation must not begin with the assistant", param="messages")
        shown = "".join(_shown(message) for message in messages) + options.get("suffix", "")
        names = ",".join(tool["function"]["name"] for tool in tools)
        shown = (f"<tools>{names}\n" if names else "") + shown
        if continues:
            return shown.removesuffix("\n")
        return shown + "<assistant>" * options.get("add_generation_prompt", True) + options.get("opening", "")

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(self._bytes[i] for i in ids).decode(errors="replace")

    def token_bytes(self, token: int) -> bytes:
        return self._bytes[token]

    def token_text(self, token: int) -> str:
        named = {BOS: "<bos>", END: "<end>"}
        return named.get(token) or self._bytes[token].decode(errors="replace")

    def detokenizer(self, marks: Sequence[str] = ()) -> _ToyDetokenizer:
        del marks  # all tokens are seen
        return _ToyDetokenizer(self)


def _shown(message: Message) -> str:
    calls = "".join(
        f"[{call['id']} {call['function']['name']} {call['function']['arguments']}]"
        for call in message.get("tool_calls") or ()
    )
    return f"<{message['role']}>{message.get('content') or ''}{calls}\n"


class _ToyDetokenizer:
    def __init__(self, text: ToyText) -> None:
        self._text = text
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, ids: Sequence[int]) -> str:
        return self._decoder.decode(b"".join(self._text.token_bytes(i) for i in ids))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


def toy_info(
    text: ToyText,
    *,
    max_model_len: int = 2048,
    kv_capacity_tokens: int = 4096,
    embedding: Embedding | None = None,
    order: tuple[str, ...] = (),
) -> EngineInfo:
    """An engine's identity that fits a ToyText."""
    return EngineInfo(
        model="toy",
        vocab_size=text.vocab_size,
        max_model_len=max_model_len,
        kv_capacity_tokens=kv_capacity_tokens,
        end_token_ids=(END,),
        embedding=embedding,
        order=order,
        strategies=("jump-ahead",),
        executor="scripted",
    )

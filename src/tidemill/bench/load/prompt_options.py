"""What prompts are made of, as the command line and Python take it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tidemill.bench.load.http_target import Endpoint
from tidemill.bench.load.request import DEFAULT_IDS
from tidemill.core.config import ModelConfig
from tidemill.core.errors import ConfigError

if TYPE_CHECKING:
    from tidemill.bench.load.prompts import IdPrompts, Prompts, TextPrompts

__all__ = ["PromptOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptOptions:
    """Prompts of a load."""

    prompts: Literal["auto", "ids", "text", "words"] = "auto"
    """ids: token ids, of exact length; text: text of exact length, by ``tokenizer``; words: plain words, whose length
    is an estimate; auto: text if there is a tokenizer, else ids for completions and words for chats."""
    tokenizer: str | None = None
    """Model whose tokenizer and chat template text is measured with: a .gguf file, a folder or a Hugging Face name."""
    token_ids: str = f"{DEFAULT_IDS[0]}..{DEFAULT_IDS[1]}"
    """Token ids that prompts are made of, the last one not included."""

    def made(self, endpoint: Endpoint, *, seed: int) -> Prompts:
        """For a server. Raises ConfigError, or ModelLoadError for a tokenizer that cannot be had."""
        from tidemill.bench.load.prompts import WordPrompts

        kind = self.prompts
        if kind == "auto":
            kind = "text" if self.tokenizer else "ids" if endpoint == "completions" else "words"
        if kind == "ids" and endpoint == "chat":
            raise ConfigError("prompts: chats take no token ids; use text with a tokenizer, or words", param="prompts")
        if kind == "text" and self.tokenizer is None:
            raise ConfigError("prompts: text of exact length needs a tokenizer; name its model", param="tokenizer")
        if kind == "text":
            return _text(self.tokenizer or "", endpoint, seed)
        return self.ids(seed=seed) if kind == "ids" else WordPrompts(seed=seed)

    def ids(self, *, seed: int, vocab_size: int = 2**31 - 1) -> IdPrompts:
        """Token ids, of an engine that has so many. Raises ConfigError."""
        from tidemill.bench.load.prompts import IdPrompts

        first, dots, last = self.token_ids.partition("..")
        try:
            low, high = int(first), int(last) if dots else -1
        except ValueError:
            low, high = -1, -1
        if not 0 <= low < high - 1:
            raise ConfigError(f"token_ids must be like 1000..30000, not {self.token_ids!r}", param="token_ids")
        if vocab_size < high:  # a tiny model: all but its first ids, where control tokens mostly are
            low, high = min(low, vocab_size // 8), vocab_size
        return IdPrompts(range(low, high), seed=seed)


def _text(model: str, endpoint: Endpoint, seed: int) -> TextPrompts:
    """Text for a model's tokenizer, measured with its chat template where that will be around it."""
    from tidemill.bench.load.prompts import TextPrompts
    from tidemill.models.loading import load_model, located
    from tidemill.text.chat import build_chat_encoder
    from tidemill.text.tokenizer import build_tokenizer

    source = load_model(located(ModelConfig(path=model))).text
    tokenizer = build_tokenizer(source)
    if endpoint == "completions":
        return TextPrompts(tokenizer, seed=seed)
    chat = build_chat_encoder(source, tokenizer)
    if chat.problem is not None:
        raise ConfigError(f"tokenizer: {chat.problem}", param="tokenizer")
    return TextPrompts(tokenizer, seed=seed, around=lambda text: chat.encode([{"role": "user", "content": text}]))

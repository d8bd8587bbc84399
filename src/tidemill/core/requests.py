"""Canonical requests: what every backend takes, whatever door the caller came through.

They carry text and messages, not token ids (except where the caller sent ids), and the raw bytes, so that a gateway
can pass a request on untouched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tidemill.core.account import NO_ACCOUNT, Account
from tidemill.core.reasoning import AS_IT_IS, ReasoningOptions
from tidemill.core.sampling import SamplingOptions
from tidemill.core.tools import NO_TOOLS, ToolUse
from tidemill.core.trace import NO_TRACE, Trace

__all__ = [
    "AnyRequest",
    "ChatRequest",
    "CompletionRequest",
    "DetokenizeRequest",
    "EmbeddingRequest",
    "GenerationRequest",
    "Message",
    "Prompt",
    "TemplateRequest",
    "TextRequest",
    "TokenizeRequest",
    "choices_of",
]

Message = Mapping[str, Any]
"""One chat message with ``role`` and ``content`` (text, a list of text parts, or null where the role allows it)."""

Prompt = str | Sequence[int]
"""One completion prompt: text, or token ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Common:
    model: str
    sampling: SamplingOptions
    stream: bool = False
    include_usage: bool = False
    """Send a last chunk with usage and no choices (streams only)."""
    continuous_usage: bool = False
    """Send the usage so far with every chunk (streams only)."""
    request_id: str = ""
    """Shown to the caller in the id of the answer; internal ids are made apart from it."""
    limit_field: str = "max_tokens"
    """What the caller called the limit of the output."""
    prompt_logprobs: int | None = None
    """Say the log-probabilities of the prompt's tokens and of so many most likely ones; not in streams."""
    user: str | None = None
    tenant: str = ""
    """Whose request it is, as the door found out; nothing that a body says."""
    account: Account = field(default=NO_ACCOUNT, compare=False, repr=False)
    """Who pays for its tokens."""
    trace: Trace = field(default=NO_TRACE, compare=False, repr=False)
    """Who wants to know when it did what."""
    timeout: float | None = None
    """Seconds after which the caller does not want the answer any more."""
    cache_salt: str = ""
    """Share KV blocks with requests of the same salt only."""
    weight: float = 1.0
    """The tenant's share beside others'."""
    priority: int = 0
    """Lower is earlier."""
    expected_tokens: int | None = None
    """Tokens of output that the caller expects."""
    strategies: Mapping[str, str] = field(default_factory=dict)
    """Strategies (``core.strategy``) by name, each with ``on`` or ``off``, as this request wants them."""
    raw: bytes = b""
    """The body as received."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest(_Common):
    """/v1/chat/completions."""

    messages: tuple[Message, ...]
    template_options: Mapping[str, Any] = field(default_factory=dict)
    """Extra variables for the model's chat template (``chat_template_kwargs``)."""
    tool_use: ToolUse = NO_TOOLS
    """The functions that the answer may or has to call."""
    messages_field: str = "messages"
    """What the caller called the conversation."""
    reasoning: ReasoningOptions = AS_IT_IS
    """What the caller wants of the reasoning before the answer."""
    continues: bool = False
    """The answer goes on with the text of the last message, the assistant's."""

    @property
    def continued(self) -> str:
        """The text that the answer goes on with; empty where it is a message of its own."""
        content = self.messages[-1].get("content") if self.continues and self.messages else None
        if isinstance(content, str):
            return content
        return "".join(part["text"] for part in content or () if isinstance(part.get("text"), str))


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest(_Common):
    """/v1/completions. All prompts are answered, or the request is refused as a whole."""

    prompts: tuple[Prompt, ...]
    echo: bool = False
    """Put the prompt's text before the answer's, with its log-probabilities where those of the answer are asked for."""


GenerationRequest = ChatRequest | CompletionRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingRequest:
    """/v1/embeddings. All inputs get vectors, or the request is refused as a whole."""

    model: str
    inputs: tuple[Prompt, ...]
    """Texts, which get the tokens that belong around a text, or token ids, which are taken as they are."""
    encoding: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    """Numbers of each vector; None: the model's own."""
    truncate: int | None = None
    """Tokens to which longer inputs are cut; -1: as many as the model takes; None: longer ones are refused."""
    request_id: str = ""
    user: str | None = None
    account: Account = field(default=NO_ACCOUNT, compare=False, repr=False)
    """Who pays for its tokens."""
    trace: Trace = field(default=NO_TRACE, compare=False, repr=False)
    """Who wants to know when it did what."""
    timeout: float | None = None
    """Seconds after which the caller does not want the answer any more."""
    tenant: str = ""
    """Whose request it is, as the door found out."""
    weight: float = 1.0
    """The tenant's share beside others'."""
    priority: int = 0
    """Lower is earlier."""
    raw: bytes = b""
    """The body as received."""

    @property
    def stream(self) -> bool:
        """Vectors come all at once."""
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfText:
    model: str
    request_id: str = ""
    raw: bytes = b""
    """The body as received."""

    @property
    def stream(self) -> bool:
        """The answer comes all at once."""
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeRequest(_OfText):
    """/tokenize: the token ids of a text or a conversation, as a request for an answer would have them."""

    prompt: str | Sequence[Message]
    special: bool = True
    """Put the tokens around a text that belong there; conversations have what their template prints."""
    template_options: Mapping[str, Any] = field(default_factory=dict)
    tool_use: ToolUse = NO_TOOLS
    """The functions that a conversation's prompt tells of."""
    reasoning: ReasoningOptions = AS_IT_IS
    """As of a request for an answer, for templates that show it."""
    continues: bool = False
    """The conversation ends in the midst of its last message."""
    texts: bool = False
    """Give the text of each token as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DetokenizeRequest(_OfText):
    """/detokenize: the text of token ids."""

    tokens: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateRequest(_OfText):
    """/apply-template: the text that a conversation becomes, up to where the answer begins."""

    messages: Sequence[Message]
    template_options: Mapping[str, Any] = field(default_factory=dict)
    tool_use: ToolUse = NO_TOOLS
    """The functions that the prompt tells of."""
    continues: bool = False
    """The conversation ends in the midst of its last message."""


TextRequest = TokenizeRequest | DetokenizeRequest | TemplateRequest
"""What needs a model's text rules and no engine."""

AnyRequest = GenerationRequest | EmbeddingRequest | TextRequest


def choices_of(request: AnyRequest) -> int:
    """How many sequences a request becomes in an engine; 0: it needs none."""
    match request:
        case ChatRequest():
            return request.sampling.n
        case CompletionRequest():
            return request.sampling.n * len(request.prompts)
        case EmbeddingRequest():
            return len(request.inputs)
    return 0

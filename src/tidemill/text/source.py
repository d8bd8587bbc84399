"""Where a model's text rules come from: the tokenizer and templates as found in its files, not yet built.

Loaders (``models/loading``) fill this in; ``text`` builds tokenizer and template from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["GgufVocabulary", "TextSource"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufVocabulary:
    """The ``tokenizer.ggml.*`` metadata of a GGUF file."""

    model: str
    """``tokenizer.ggml.model``: gpt2 is byte-level BPE, llama SentencePiece with scores, bert WordPiece."""
    pre: str
    """``tokenizer.ggml.pre``: the name of the pre-tokenizer rule; empty if absent."""
    tokens: Sequence[str]
    token_types: Sequence[int]
    """1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte; empty if absent."""
    merges: Sequence[str]
    scores: Sequence[float] = ()
    bos_id: int | None = None
    eos_id: int | None = None
    unk_id: int | None = None
    pad_id: int | None = None
    sep_id: int | None = None
    """Ends a text of kind bert; None: the token named ``[SEP]``."""
    add_bos: bool | None = None
    add_eos: bool | None = None
    add_sep: bool | None = None
    add_space_prefix: bool | None = None
    """Kind llama: whether a space is put before the text; None: yes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSource:
    """Exactly one of ``tokenizer_json`` and ``gguf`` is present."""

    tokenizer_json: bytes | None = None
    """The content of tokenizer.json."""
    gguf: GgufVocabulary | None = None
    chat_templates: Mapping[str, str] = field(default_factory=dict)
    """Jinja sources by name; ``default`` is used unless another fits better (``tool_use`` with tools)."""
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    """Texts by role: ``bos_token``, ``eos_token``, ... as the templates expect them."""
    add_bos: bool | None = None
    """Whether plain prompts start with BOS; None: as the tokenizer's own post-processor does."""
    end_token_ids: tuple[int, ...] = ()
    """End tokens named by generation config, config and file metadata (union, ascending)."""
    where: str = ""
    """The file or folder it came from, for error messages."""

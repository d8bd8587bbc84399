"""Prompts as chains of keys: equal keys are equal beginnings, up to the end of a block.

Keys are Python's own hashes of 64 bits, of text with a secret of the process (SipHash): nobody outside can look for two
texts with one key, and where chance finds two, a request goes to another replica than the best one.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["next_block", "text_blocks", "token_blocks"]


def text_blocks(text: bytes, size: int, *, salt: str = "") -> tuple[int, ...]:
    """Keys of the full blocks of ``size`` bytes. Texts with different salts share none."""
    key, keys = hash(salt), []
    for at in range(0, len(text) - size + 1, size):
        key = hash((key, text[at : at + size]))
        keys.append(key)
    return tuple(keys)


def token_blocks(tokens: Sequence[int], size: int, *, salt: str = "") -> tuple[int, ...]:
    """Keys of the full blocks of ``size`` token ids."""
    key, keys = hash(salt), []
    for at in range(0, len(tokens) - size + 1, size):
        key = next_block(key, tokens[at : at + size])
        keys.append(key)
    return tuple(keys)


def next_block(before: int, tokens: Sequence[int]) -> int:
    """The key of a block of token ids that follows another one, or begins what a salt's hash stands for."""
    return hash((before, *tokens))

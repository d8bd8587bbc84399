"""What a model is called on the Hugging Face hub: ``org/name``, with one of its GGUF files, at a revision.

org / name  : Q4_K_M   @ v1.0
repository    file       revision: a branch, a tag or a commit
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Self

from tidemill.core.errors import ConfigError

__all__ = ["HubName", "parse_hub_name"]

_PART = r"[A-Za-z0-9][\w.-]*"
_PATH = r"[A-Za-z0-9][\w.-]*(?:/[\w.-]+)*"
_NAME = re.compile(rf"(?P<repo>{_PART}/{_PART})(?::(?P<file>{_PATH}))?(?:@(?P<revision>{_PATH}))?", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True, kw_only=True)
class HubName:
    """A repository, and what of it."""

    repo: str
    file: str | None = None
    """The end of a GGUF file's name, such as its quantisation; None: the repository's only model."""
    revision: str | None = None
    """None: the main branch."""

    def __str__(self) -> str:
        return f"{self.model}@{self.revision}" if self.revision else self.model

    @property
    def model(self) -> str:
        """The name without its revision: how callers know the model."""
        return f"{self.repo}:{self.file}" if self.file else self.repo

    @property
    def is_commit(self) -> bool:
        """True if the revision can never mean anything else."""
        return self.revision is not None and _COMMIT.fullmatch(self.revision) is not None

    def pinned(self, revision: str | None) -> Self:
        """With the revision that a setting names. Raises ConfigError if the name has another one."""
        if revision is None or revision == self.revision:
            return self
        if self.revision is not None:
            raise ConfigError(f"revision is {revision}, but {self} names another one; leave one out", param="revision")
        if re.fullmatch(_PATH, revision, re.ASCII) is None:
            raise ConfigError(f"revision must be a branch, a tag or a commit, not {revision!r}", param="revision")
        return replace(self, revision=revision)


def parse_hub_name(text: str) -> HubName | None:
    """The name, or None if the text is none. ``org/name.gguf`` is a path."""
    match = _NAME.fullmatch(text)
    if match is None or (match["file"] is None and match["repo"].lower().endswith(".gguf")):
        return None
    return HubName(repo=match["repo"], file=match["file"], revision=match["revision"])

"""Who guesses, and how much, as the settings say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tidemill.core.config import SchedulerConfig
from tidemill.engine.ngrams import NgramProposer
from tidemill.engine.proposer import Proposer
from tidemill.scheduling.draft_lengths import AdaptiveLengths, FixedLengths, Lengths
from tidemill.scheduling.speculation_kinds import speculation_kinds

__all__ = ["lengths_of", "proposers_of"]

_PROPOSERS: Final[Mapping[str, Callable[[], Proposer]]] = {"ngram": NgramProposer}


def proposers_of(config: SchedulerConfig) -> list[Proposer]:
    """Those that ``speculate`` names, in its order."""
    return [_PROPOSERS[kind]() for kind in speculation_kinds(config.speculate)]


def lengths_of(config: SchedulerConfig) -> Lengths:
    """Who says how much to guess."""
    if config.speculate_length == "fixed":
        return FixedLengths(config.speculate_tokens)
    return AdaptiveLengths(config.speculate_tokens)

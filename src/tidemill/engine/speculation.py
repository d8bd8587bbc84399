"""Who guesses, and how much, as the settings say."""

from __future__ import annotations

from tidemill.core.config import SchedulerConfig
from tidemill.engine.ngrams import NgramProposer
from tidemill.engine.proposer import Proposer
from tidemill.engine.suffixes import SuffixProposer
from tidemill.scheduling.draft_lengths import AdaptiveLengths, FixedLengths, Lengths
from tidemill.scheduling.speculation_kinds import DRAFT, speculation_kinds

__all__ = ["lengths_of", "proposers_of"]


def proposers_of(config: SchedulerConfig, draft_model: Proposer | None = None) -> list[Proposer]:
    """Those that ``speculate`` names, in its order; a draft model has to be there already."""
    made: list[Proposer] = []
    for kind in speculation_kinds(config.speculate):
        if kind == DRAFT:
            assert draft_model is not None, "the draft model was not loaded"
            made.append(draft_model)
        else:
            made.append(NgramProposer() if kind == "ngram" else SuffixProposer(config.speculate_suffix_tokens))
    return made


def lengths_of(config: SchedulerConfig) -> Lengths:
    """Who says how much to guess."""
    if config.speculate_length == "fixed":
        return FixedLengths(config.speculate_tokens)
    return AdaptiveLengths(config.speculate_tokens)

"""The engine's side of a sequence: its token ids, and what its next draw depends on."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from tidemill.core.mask import allows
from tidemill.core.sampling import SamplingOptions, single
from tidemill.core.step import PenaltyCounts, RowOptions, RowOutputs, SequenceId, TokenLogprob
from tidemill.core.tokens import EmbedRequest, EngineInfo, FinishReason, TokenDelta, TokenRequest
from tidemill.engine.constraints import GrammarConstraint, GrammarPosition, constraints_of, mask_after
from tidemill.engine.proposer import Asked, resolve
from tidemill.graph.lora import AdapterNumber
from tidemill.scheduling.draft_lengths import Acceptance
from tidemill.scheduling.kv.cache import BlockKey
from tidemill.scheduling.sequence import SequenceCounters
from tidemill.scheduling.speculation_kinds import strategy_name

__all__ = ["NOTHING_ALLOWED", "EmbeddedSequence", "EngineSequence", "GeneratedSequence", "TokenCounts", "row_options"]


NOTHING_ALLOWED = "no token may follow: what the request forbids leaves none (allowed_token_ids, bad_words, min_tokens)"


class TokenCounts:
    """Which tokens a sequence has and how often each was generated, kept as it grows."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self._ids = sorted(set(prompt))
        self._counts = [0] * len(self._ids)

    def add(self, token: int) -> None:
        """Count one generated token."""
        index = bisect_left(self._ids, token)
        if index == len(self._ids) or self._ids[index] != token:
            self._ids.insert(index, token)
            self._counts.insert(index, 0)
        self._counts[index] += 1

    def snapshot(self, guessed: Sequence[int] = ()) -> PenaltyCounts:
        """The counts of now, as if the guessed tokens had been generated too; later tokens do not change it."""
        if not guessed:
            return PenaltyCounts(ids=tuple(self._ids), output_counts=tuple(self._counts))
        ahead = TokenCounts(())
        ahead._ids, ahead._counts = list(self._ids), list(self._counts)
        for token in guessed:
            ahead.add(token)
        return ahead.snapshot()


_LEAST_TOP_P: Final = sys.float_info.min
"""Less is zero where denormal numbers are; and no more is left by it than the most likely token."""
_LEAST_PENALTY: Final = 1e-30
"""Logits that are divided by less may overflow; they are far above all others already."""


def row_options(sampling: SamplingOptions, seed: int, choice: int) -> RowOptions:
    """The part of a row's options that stays the same from token to token."""
    return RowOptions(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=max(sampling.top_p, _LEAST_TOP_P),
        min_p=sampling.min_p,
        repetition_penalty=max(single(sampling.repetition_penalty), _LEAST_PENALTY),
        presence_penalty=single(sampling.presence_penalty),
        frequency_penalty=single(sampling.frequency_penalty),
        logit_bias=tuple(sorted(sampling.logit_bias.items())),
        seed=seed % 2**64,
        choice=choice,
        logprobs=sampling.logprobs,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """What a sequence takes of the tokens a step drew for it."""

    tokens: tuple[int, ...]
    stop_token: int | None
    finish_reason: FinishReason | None


class EngineSequence:
    """One sequence from its prompt to its end, whatever comes of it."""

    def __init__(
        self, request: TokenRequest | EmbedRequest, *, choice: int, sequence_id: SequenceId, max_tokens: int
    ) -> None:
        self.request_id = request.request_id
        self.choice = choice
        self.tokens = list(request.prompt)
        """Prompt and output so far."""
        self.proposed: tuple[int, ...] = ()
        """Tokens proposed to follow in the next step."""
        self.began: float | None = None
        """When its first step began, on the engine's clock."""
        self.proposed_by = ""
        """Who guessed these: the proposer's kind, or ``forced`` where a grammar leaves no choice; empty: nobody."""
        self.guessed: tuple[bytes | None, ...] = ()
        """How likely they were to be proposed; see ``RowOptions.guessed``."""
        self.acceptance: dict[str, Acceptance] = {}
        self.accepted = self.rejected = 0
        """Guesses that were computed, right and wrong."""
        """What became of its proposals so far, by kind."""
        self.scope = ("", "")
        """Tenant and cache salt."""
        self.adapter = AdapterNumber(0)
        """What plans call its adapter; 0: it has none."""
        self.root: BlockKey | None = None
        """Where the keys of its blocks begin; None: it shares none."""
        self.counters = SequenceCounters(id=sequence_id, num_prompt=len(self.tokens), max_tokens=max_tokens)

    @property
    def num_output(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.counters.num_prompt

    @property
    def room(self) -> int:
        """Tokens that may still be generated."""
        return self.counters.max_tokens - self.num_output

    @property
    def jumps(self) -> bool:
        """True if tokens that are forced are proposed."""
        return False

    def speculates(self, kind: str) -> bool:  # noqa: ARG002
        """True if such guesses may be made for it, and from it for others."""
        return False

    def asked(self, limit: int) -> Asked:
        """What proposers get to know of it."""
        raise NotImplementedError

    def sayable(self, guessed: Sequence[int]) -> tuple[int, ...]:
        """The beginning of guessed tokens that could be kept if each was right."""
        raise NotImplementedError

    def forced(self, limit: int) -> tuple[int, ...]:  # noqa: ARG002
        """At most ``limit`` tokens that are all but sure to follow; as any proposal, a wrong one changes nothing."""
        return ()

    def options(self, num_outputs: int) -> RowOptions | None:  # noqa: ARG002
        """What the next draws depend on, one per output; None: nothing is drawn."""
        return None

    def span(self, start: int, end: int) -> tuple[int, ...]:
        """The token ids at positions start .. end - 1, proposals included."""
        known = self.tokens[start:end]
        behind = end - len(self.tokens)
        return (*known, *self.proposed[:behind]) if behind > 0 else tuple(known)

    def scoring(self, start: int, num_scored: int, num_drawn: int) -> RowOptions | None:
        """Like ``options``, of a share whose first outputs score the prompt's tokens from position start + 1 on."""
        raise NotImplementedError

    def score(self, start: int, num_scored: int, outputs: RowOutputs) -> RowOutputs:
        """Keep what these outputs say of the prompt's tokens, and return the others."""
        raise NotImplementedError

    def take(self, outputs: RowOutputs) -> TokenDelta:
        """Take in what a step's outputs gave, and say it in a delta."""
        raise NotImplementedError

    def ended(self, reason: FinishReason, error: str | None = None, *, refused: bool = False) -> TokenDelta:
        """A last delta without tokens."""
        return TokenDelta(
            request_id=self.request_id,
            choice=self.choice,
            tokens=(),
            finish_reason=reason,
            num_output_tokens=self.num_output,
            num_cached_tokens=self.counters.num_adopted,
            error=error,
            refused=refused,
        )


class EmbeddedSequence(EngineSequence):
    """A text whose vector is asked for: that is its one output."""

    def take(self, outputs: RowOutputs) -> TokenDelta:
        """End with the vector."""
        return TokenDelta(
            request_id=self.request_id,
            choice=self.choice,
            tokens=(),
            finish_reason=FinishReason.STOP,
            vector=outputs.vector,
        )


class GeneratedSequence(EngineSequence):
    """One choice of a request that generates."""

    def __init__(
        self,
        request: TokenRequest,
        *,
        choice: int,
        sequence_id: SequenceId,
        max_tokens: int,
        seed: int,
        info: EngineInfo,
        grammar: GrammarPosition | None = None,
        jumps: bool = True,
    ) -> None:
        """``jumps``: what the grammar leaves no choice about may be computed in one step."""
        super().__init__(request, choice=choice, sequence_id=sequence_id, max_tokens=max_tokens)
        sampling = request.sampling
        self._options = row_options(sampling, seed, choice)
        self._counts = TokenCounts(self.tokens) if sampling.has_penalties else None
        self._end_tokens = frozenset(sampling.stop_token_ids)
        if not sampling.ignore_eos:
            self._end_tokens |= frozenset(info.end_token_ids)
        self._scored_top = sampling.prompt_logprobs
        self._prompt_logprobs: list[TokenLogprob] = []
        self._scores_said = False
        self.counters.scored = self._scored_top is not None and self.counters.num_prompt > 1
        self._jumps = jumps and grammar is not None
        self._without = request.without
        self.scope = (request.tenant, request.cache_salt)
        self._grammar = None if grammar is None else GrammarConstraint(grammar)
        self._constraints = constraints_of(
            sampling, request.banned, tuple(self._end_tokens), info.vocab_size, reasoning=request.reasoning
        )
        if self._grammar is not None:
            self._constraints = (self._grammar, *self._constraints)
        self._masks: tuple[bytes | None, ...] = ()
        """Of the outputs that are being drawn."""

    def options(self, num_outputs: int) -> RowOptions:
        """What the next draws depend on, one per output."""
        options = self._options
        if self._counts is not None:
            options = replace(options, penalties=self._counts.snapshot())
        if self.guessed:
            options = replace(options, guessed=self.guessed[: num_outputs - 1])
        if self._constraints:
            self._masks = self._masks_of(num_outputs)
            options = replace(options, masks=self._masks)
        return options

    def forced(self, limit: int) -> tuple[int, ...]:
        """See EngineSequence: what its grammar leaves no choice about."""
        if self._grammar is None:
            return ()
        return tuple(self._grammar.forced(self._output()))[:limit]

    @property
    def jumps(self) -> bool:
        """See EngineSequence."""
        return self._jumps

    def speculates(self, kind: str) -> bool:
        """See EngineSequence."""
        return strategy_name(kind) not in self._without

    def asked(self, limit: int) -> Asked:
        """See EngineSequence."""
        return Asked(
            sequence=self.counters.id,
            tokens=self.tokens,
            num_prompt=self.counters.num_prompt,
            scope=self.scope,
            keys=self.counters.keys,
            limit=limit,
            options=self._options_behind,
        )

    def _options_behind(self, guessed: Sequence[int]) -> RowOptions:
        """What the draw behind guessed tokens depends on."""
        options = replace(self._options, logprobs=None)
        if self._counts is not None:
            options = replace(options, penalties=self._counts.snapshot(guessed))
        if self._constraints:
            options = replace(options, masks=(mask_after(self._constraints, [*self._output(), *guessed]),))
        return options

    def sayable(self, guessed: Sequence[int]) -> tuple[int, ...]:
        """See EngineSequence: up to an end token, or what its constraints do not allow."""
        output = self._output() if self._constraints else []
        for place, token in enumerate(guessed):
            mask = mask_after(self._constraints, [*output, *guessed[:place]]) if self._constraints else None
            if not allows(mask, token):
                return tuple(guessed[:place])
            if token in self._end_tokens:
                return tuple(guessed[: place + 1])
        return tuple(guessed)

    def scoring(self, start: int, num_scored: int, num_drawn: int) -> RowOptions:
        """See EngineSequence."""
        options = self.options(num_drawn) if num_drawn else self._options
        masks = None if options.masks is None else (*(None,) * num_scored, *options.masks)
        # One number for both kinds of output; ``score`` and ``take`` cut what is too much.
        most = max(self._scored_top or 0, options.logprobs or 0)
        targets = tuple(self.tokens[start + 1 : start + 1 + num_scored])
        return replace(options, targets=targets, masks=masks, logprobs=most)

    def score(self, start: int, num_scored: int, outputs: RowOutputs) -> RowOutputs:
        """See EngineSequence. A prompt that is computed again after a preemption is scored once."""
        assert outputs.logprobs is not None
        assert self._scored_top is not None
        known = len(self._prompt_logprobs)
        new = outputs.logprobs[:num_scored][max(0, known - start) :]
        self._prompt_logprobs += [replace(one, top=one.top[: self._scored_top]) for one in new]
        if len(self._prompt_logprobs) == self.counters.num_prompt - 1:
            self.counters.scored = False
        logprobs = None
        if self._options.logprobs is not None:
            own = self._options.logprobs
            logprobs = tuple(replace(one, top=one.top[:own]) for one in outputs.logprobs[num_scored:])
        return RowOutputs(tokens=outputs.tokens[num_scored:], logprobs=logprobs)

    def _scores(self) -> tuple[TokenLogprob, ...] | None:
        """The prompt's log-probabilities, once, with the first delta."""
        if self._scored_top is None or self.num_output or self._scores_said:
            return None
        self._scores_said = True
        return tuple(self._prompt_logprobs)

    def _output(self) -> list[int]:
        return self.tokens[self.counters.num_prompt :]

    def _masks_of(self, num_outputs: int) -> tuple[bytes | None, ...]:
        output = self._output()
        return tuple(mask_after(self._constraints, [*output, *self.proposed[:ahead]]) for ahead in range(num_outputs))

    def take(self, outputs: RowOutputs) -> TokenDelta:
        """Resolve what was drawn against what was proposed, and append it."""
        drawn = outputs.tokens
        if len(drawn) > 1:
            drawn = resolve(self.proposed[: len(drawn) - 1], drawn)
        return self.accept(drawn, outputs.logprobs)

    def accept(self, drawn: Sequence[int], logprobs: Sequence[TokenLogprob] | None) -> TokenDelta:
        """Append what a step drew, up to an end token or the length, and say it in a delta."""
        kept = self._cut(self._keep(drawn))
        if not all(allows(mask, token) for mask, token in zip(self._masks, drawn, strict=False)):
            problem = self._grammar.problem if self._grammar is not None else ""
            return self.ended(FinishReason.ERROR, problem or NOTHING_ALLOWED, refused=True)
        scores = self._scores()
        end = () if kept.stop_token is None else (kept.stop_token,)
        for token in (*kept.tokens, *end):
            self.tokens.append(token)
            if self._counts is not None:
                self._counts.add(token)
        return TokenDelta(
            request_id=self.request_id,
            choice=self.choice,
            tokens=kept.tokens,
            logprobs=None if logprobs is None else tuple(logprobs[: len(kept.tokens)]),
            prompt_logprobs=scores,
            finish_reason=kept.finish_reason,
            stop_token=kept.stop_token,
            stop_logprob=None if logprobs is None or not end else logprobs[len(kept.tokens)],
            num_output_tokens=self.num_output,
            num_cached_tokens=self.counters.num_adopted,
        )

    def _cut(self, kept: _Kept) -> _Kept:
        """End where the grammar does. An end token drawn behind that in the same step would not have been drawn in
        another, so it does not count."""
        if self._grammar is None or not self._grammar.over([*self._output(), *kept.tokens]):
            return kept
        return _Kept(tokens=kept.tokens, stop_token=None, finish_reason=FinishReason.STOP)

    def _keep(self, drawn: Sequence[int]) -> _Kept:
        drawn = drawn[: self.room]
        for index, token in enumerate(drawn):
            if token in self._end_tokens:
                return _Kept(tokens=tuple(drawn[:index]), stop_token=token, finish_reason=FinishReason.STOP)
        reason = FinishReason.LENGTH if len(drawn) == self.room else None
        return _Kept(tokens=tuple(drawn), stop_token=None, finish_reason=reason)

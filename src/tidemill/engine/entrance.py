"""The way in: a request becomes ``n`` sequences, or where a vector is asked for one."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

from tidemill.core.clock import Clock
from tidemill.core.errors import InvalidRequest
from tidemill.core.grammar import Grammar
from tidemill.core.step import SequenceId
from tidemill.core.tokens import EmbedRequest, EngineInfo, TokenRequest
from tidemill.engine.adapters import NO_ADAPTER
from tidemill.engine.block_names import BlockNames
from tidemill.engine.constraints import GrammarPosition
from tidemill.engine.sequences import EmbeddedSequence, EngineSequence, GeneratedSequence
from tidemill.engine.standing import standing_of
from tidemill.graph.lora import AdapterNumber
from tidemill.scheduling.strategies import JUMP_AHEAD
from tidemill.text.grammars import Grammars

__all__ = ["Entrance", "random_seed"]


def random_seed() -> int:
    """A seed for a request that names none."""
    return secrets.randbits(64)


class Entrance:
    """Makes sequences of requests that were found to be servable."""

    def __init__(
        self,
        *,
        info: EngineInfo,
        clock: Clock,
        names: BlockNames,
        seeds: Callable[[], int],
        grammars: Grammars | None,
        jump_ahead: bool,
    ) -> None:
        """``jump_ahead``: forced tokens are proposed, for requests that do not go without."""
        self._info = info
        self._clock = clock
        self._names = names
        self._seeds = seeds
        self._grammars = grammars
        self._jump_ahead = jump_ahead
        self._next_id = 0

    def sequences_of(
        self, request: TokenRequest | EmbedRequest, max_tokens: int, adapter: AdapterNumber = NO_ADAPTER
    ) -> Sequence[EngineSequence]:
        """The request's sequences, each of at most so many tokens of output. Raises InvalidRequest for a grammar that
        nothing here can read."""
        sequences: Sequence[EngineSequence]
        if isinstance(request, EmbedRequest):
            sequences = [EmbeddedSequence(request, choice=0, sequence_id=self._new_id(), max_tokens=max_tokens)]
        else:
            sequences = self._generated(request, max_tokens, adapter)
        standing = standing_of(request, self._info.order, self._clock.now())
        for sequence in sequences:
            sequence.counters.standing = standing
        return sequences

    def _generated(self, request: TokenRequest, max_tokens: int, adapter: AdapterNumber) -> list[GeneratedSequence]:
        seed = self._seeds() if request.sampling.seed is None else request.sampling.seed
        sequences = [
            GeneratedSequence(
                request,
                choice=choice,
                sequence_id=self._new_id(),
                max_tokens=max_tokens,
                seed=seed,
                info=self._info,
                grammar=self._position(request.sampling.grammar),
                jumps=self._jump_ahead and JUMP_AHEAD.name not in request.without,
            )
            for choice in range(request.choices)
        ]
        for sequence in sequences:
            sequence.adapter = adapter
        self._names.begin(request, sequences)
        return sequences

    def _position(self, grammar: Grammar | None) -> GrammarPosition | None:
        if grammar is None:
            return None
        if self._grammars is None:
            raise InvalidRequest(f"{grammar.name}: this engine has no text to keep to a grammar", param=grammar.name)
        return self._grammars.state(grammar)

    def _new_id(self) -> SequenceId:
        self._next_id += 1
        return SequenceId(self._next_id - 1)

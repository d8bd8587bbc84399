"""Who is in an engine: its sequences, by their ids and by the requests they belong to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tidemill.core.step import SequenceId
from tidemill.engine.sequences import EngineSequence

__all__ = ["Roster"]


class Roster:
    """The sequences that wait or run. A request is in it as long as one of its sequences is."""

    def __init__(self) -> None:
        self._sequences: dict[SequenceId, EngineSequence] = {}
        self._requests: dict[str, list[EngineSequence]] = {}
        self._num_jumping = 0

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[EngineSequence]:
        return iter(self._sequences.values())

    def __getitem__(self, sequence_id: SequenceId) -> EngineSequence:
        return self._sequences[sequence_id]

    def get(self, sequence_id: SequenceId) -> EngineSequence | None:
        """The sequence, unless it has left."""
        return self._sequences.get(sequence_id)

    @property
    def num_jumping(self) -> int:
        """Sequences whose forced tokens are proposed."""
        return self._num_jumping

    @property
    def num_requests(self) -> int:
        """Requests with a sequence left."""
        return len(self._requests)

    def has_request(self, request_id: str) -> bool:
        """True while any sequence of the request is here."""
        return request_id in self._requests

    def of_request(self, request_id: str) -> tuple[EngineSequence, ...]:
        """A request's sequences that are here."""
        return tuple(self._requests.get(request_id, ()))

    def add(self, request_id: str, sequences: Sequence[EngineSequence]) -> None:
        """Take in the sequences of a new request."""
        self._requests[request_id] = list(sequences)
        for sequence in sequences:
            self._sequences[sequence.counters.id] = sequence
            self._num_jumping += sequence.jumps

    def remove(self, sequence: EngineSequence) -> None:
        """Let a sequence go."""
        del self._sequences[sequence.counters.id]
        self._num_jumping -= sequence.jumps
        siblings = self._requests[sequence.request_id]
        siblings.remove(sequence)
        if not siblings:
            del self._requests[sequence.request_id]

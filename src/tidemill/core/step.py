"""Plan and result of one step: the only values that cross between a scheduler's engine and an executor.

Plans are stateless. Each row carries its whole block tables and everything its draw depends on, so a plan can be
replayed, sent to another rank, or run by a restarted executor.

One row is one sequence's work in this step. With ``start`` tokens already computed and ``len(tokens)`` given:

    positions   0 ............ start .................... start + len(tokens)
                |-- in the KV --|-- computed in this step --|
                                          |-- num_outputs --|   positions whose logits are drawn from

``num_outputs`` is 0 for a chunk in mid-prompt, 1 for plain decoding, and 1 + k where the last k tokens are proposals
of a drafter: output j is drawn as if the j proposals before it had been accepted. Where a prompt is to be scored, the
first outputs draw nothing: they say how likely given tokens are (``RowOptions.targets``), the prompt's own next ones.

A model that embeds draws nothing: its output is the sequence's vector, pooled when the last token has been computed.
Where that needs all tokens at once (no causal mask, or a mean over them), a row is a whole sequence and starts at 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NewType

__all__ = [
    "NO_BLOCK",
    "NO_SEQUENCE",
    "BlockId",
    "KindTime",
    "PenaltyCounts",
    "PlanRow",
    "RowOptions",
    "RowOutputs",
    "SequenceId",
    "StepPlan",
    "StepResult",
    "TokenId",
    "TokenLogprob",
]

TokenId = NewType("TokenId", int)
BlockId = NewType("BlockId", int)
SequenceId = NewType("SequenceId", int)

NO_BLOCK = BlockId(-1)
"""Stands in a block table where a block was given back: no token from the row's start on reads those positions."""

NO_SEQUENCE = SequenceId(-1)
"""Stands in a row that belongs to no sequence: it is computed, and what it gives is dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PenaltyCounts:
    """The tokens a row's penalties act on: parallel sequences, each id once, in ascending order."""

    ids: Sequence[int]
    """Token ids in prompt or output: the repetition penalty acts on all of them."""
    output_counts: Sequence[int]
    """How often each was generated, 0 for those in the prompt only: presence and frequency act on these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOptions:
    """Everything the draw of a row depends on besides its logits. See SamplingOptions for the meaning of each."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    """Key of the random numbers, as an unsigned 64-bit value; with ``choice`` and the position it gives the noise."""
    choice: int = 0
    logprobs: int | None = None
    """Return the drawn token's log-probability and those of this many most likely tokens; None: neither."""
    penalties: PenaltyCounts | None = None
    """Present exactly if one of the three penalties is on."""
    targets: tuple[int, ...] = ()
    """The first outputs are these tokens, not drawn: they are asked for with their log-probabilities."""
    guessed: tuple[bytes | None, ...] = ()
    """Per proposal, how likely each token was to be proposed (float32, little-endian); None: this one for certain. Of
    interest where proposals are accepted by rejection sampling alone."""
    masks: tuple[bytes | None, ...] | None = None
    """Per output, the tokens that may be drawn (see ``core.mask``), None: every token. None: no output has a mask.
    Where a mask allows no token, token 0 is given, and whoever made the mask has to see that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """One sequence's share of a step."""

    sequence: SequenceId
    tokens: Sequence[int]
    """Token ids to compute, at absolute positions start, start + 1, ...; at least one."""
    start: int
    """Absolute position of tokens[0]; the KV of all positions before it is already in the block tables."""
    block_tables: tuple[Sequence[int], ...]
    """Per KV group, in the graph's order: block ids; position p is slot p % block_size of table[p // block_size].

    In a group with a window, entries wholly before position start - window + 1 are NO_BLOCK once their blocks were
    given back: an executor never reads them. Every position the row reads or writes has a real block, that is all of
    max(0, start - window + 1) .. start + len(tokens) - 1 (from 0 on without a window); executors refuse a row where
    one is NO_BLOCK. A block may be one that held other positions, of this sequence or another, the step before."""
    num_outputs: int = 0
    """How many of the last positions to draw a token from; of a model that embeds, 1 asks for the sequence's vector."""
    options: RowOptions | None = None
    """Present exactly if tokens are drawn: num_outputs > 0, and the model does not embed."""
    adapter: int = 0
    """The adapter (``graph.lora``) that the executor has under this number; 0: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One step. Rows are in the scheduler's order; the result has the same order."""

    step: int
    rows: tuple[PlanRow, ...]
    profile: bool = False
    """Ask for the times of the step's parts."""

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step, over all rows."""
        return sum(len(row.tokens) for row in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """Log-probabilities at one generated position, from the raw logits (natural log)."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """(token id, log-probability) of the most likely tokens, best first, ties to the lowest id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOutputs:
    """What a row's output positions gave: ``num_outputs`` tokens, in order; resolving proposals is the engine's."""

    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    vector: bytes | None = None
    """The pooled vector, not normalised, where it was asked for: float32, little-endian."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KindTime:
    """One kind of work in a step, over all layers."""

    kind: str
    """As people call it: qkv, attention, norm + quantise, ..."""
    calls: int
    """Instructions of this kind."""
    seconds: float
    """Time the threads worked on it, on average; what they waited is a kind of its own."""
    bytes: int = 0
    """Weights, in the bytes of their file, and KV that it has to read and write at least."""
    operations: int = 0
    """Multiplications and additions of its products."""
    integer: bool = False
    """Products of bytes, not of floats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The result of one plan: one RowOutputs per plan row, empty for rows with num_outputs 0."""

    step: int
    rows: tuple[RowOutputs, ...]
    seconds: float = 0.0
    """Time the executor spent on the step."""
    profile: tuple[KindTime, ...] = ()
    """Where that time went, if the plan asked: adds up to ``seconds``, but for microseconds."""

"""How the next token is chosen: one record, validated once, the same for HTTP, Python and the engines.

The order of the steps is fixed (and is that of Hugging Face transformers):
logits -> bias -> repetition, presence and frequency penalties -> allowed tokens -> temperature -> top-k -> top-p ->
min-p -> draw.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tidemill.core.errors import InvalidRequest
from tidemill.core.grammar import Grammar
from tidemill.core.quoted import quoted

__all__ = [
    "GREEDY_TEMPERATURE",
    "MAX_BAD_WORDS",
    "MAX_CHOICES",
    "MAX_LOGIT_BIAS",
    "MAX_STOP_CHARACTERS",
    "MAX_STOP_STRINGS",
    "MAX_TOP_LOGPROBS",
    "SamplingOptions",
    "single",
]

GREEDY_TEMPERATURE = 1e-5
"""At or below this temperature the draw is the argmax; dividing by less would overflow."""
MAX_CHOICES = 128
MAX_TOP_LOGPROBS = 20
MAX_LOGIT_BIAS = 1024
MAX_STOP_STRINGS = 64
MAX_STOP_CHARACTERS = 16 * 1024
"""Of all stop strings together: each choice gets tables of them."""
MAX_BAD_WORDS = 256
_MAX_SEED = 2**63
_LEAST_SINGLE = 2.0**-126


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """Options of the draw and of the end of one request. ``validated`` must have been called on it."""

    temperature: float = 1.0
    """Divides the logits; 0 (anything up to 1e-5) means greedy: the most likely token, ties to the lowest id."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 or -1 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of most likely tokens whose probability reaches top_p; in (0, 1]."""
    min_p: float = 0.0
    """Drop tokens less likely than min_p times the most likely one; in [0, 1]."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens seen in prompt or output; in (0, 10]."""
    presence_penalty: float = 0.0
    """Subtracted once from the logit of each token in the output; in [-2, 2]."""
    frequency_penalty: float = 0.0
    """Subtracted from the logit of each token in the output, times its count there; in [-2, 2]."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logit of each token id named, before everything else; values in [-100, 100]."""
    seed: int | None = None
    """Makes the draw repeatable: same seed, prompt and options give the same tokens. None: a seed is chosen."""
    n: int = 1
    """How many choices to generate for the prompt; each draws its own random numbers."""
    max_tokens: int | None = None
    """Most tokens to generate per choice; None: as many as the model's length leaves room for."""
    min_tokens: int = 0
    """Fewest tokens to generate per choice: before, no end token, no stop token id and no stop string ends it."""
    allowed_token_ids: tuple[int, ...] | None = None
    """Draw none but these (end tokens, where they are to be possible, included); None: any."""
    bad_words: tuple[str, ...] = ()
    """Texts whose token sequences are not generated, at the beginning of a word or within one."""
    grammar: Grammar | None = None
    """What the answer has to look like; None: anything."""
    stop: tuple[str, ...] = ()
    """Generation ends before the first of these strings; they are not part of the text."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end generation, besides the model's own end tokens; they are not part of the text."""
    ignore_eos: bool = False
    """Generate past the model's end tokens (stop_token_ids still end it)."""
    prompt_logprobs: int | None = None
    """Return the log-probability of each token of the prompt but the first, and of the k most likely ones at its place;
    None: return none. The prompt is then computed whole, whatever is kept of others."""
    logprobs: int | None = None
    """Return the log-probability of each token and of the k most likely ones; None: return none. They are those of
    the model (log-softmax of the raw logits), before bias, penalties, temperature and cuts."""

    def __post_init__(self) -> None:
        stop: object = self.stop
        if isinstance(stop, str):  # one text alone; taken for a sequence, each of its letters would end the answer
            object.__setattr__(self, "stop", (stop,))

    @property
    def greedy(self) -> bool:
        """True if the draw is the argmax."""
        return self.temperature <= GREEDY_TEMPERATURE

    @property
    def has_penalties(self) -> bool:
        """True if the draw depends on the tokens seen so far."""
        penalties = self.repetition_penalty, self.presence_penalty, self.frequency_penalty
        return tuple(map(single, penalties)) != (1.0, 0.0, 0.0)

    def validated(self, vocab_size: int) -> SamplingOptions:
        """Return self if every value is one that can be honoured, else raise InvalidRequest naming the field."""
        _number("temperature", self.temperature, 0.0, 100.0)
        _integer("top_k", self.top_k, -1, 2**31 - 1)
        _number("top_p", self.top_p, 0.0, 1.0, above_low=True)
        _number("min_p", self.min_p, 0.0, 1.0)
        _number("repetition_penalty", self.repetition_penalty, 0.0, 10.0, above_low=True)
        _number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _integer("n", self.n, 1, MAX_CHOICES)
        if self.max_tokens is not None:
            _integer("max_tokens", self.max_tokens, 1, 2**31 - 1)
        _integer("min_tokens", self.min_tokens, 0, 2**31 - 1)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequest(
                f"min_tokens is {self.min_tokens}, more than max_tokens, which is {self.max_tokens}", param="min_tokens"
            )
        if self.seed is not None:
            _integer("seed", self.seed, -_MAX_SEED, _MAX_SEED - 1)
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                _integer(name, getattr(self, name), 0, MAX_TOP_LOGPROBS)
        if not isinstance(self.ignore_eos, bool):
            raise InvalidRequest(f"ignore_eos must be true or false, not {quoted(self.ignore_eos)}", param="ignore_eos")
        self._check_bias(vocab_size)
        self._check_stops(vocab_size)
        self._check_allowed(vocab_size)
        self._check_bad_words()
        if self.grammar is not None:
            self.grammar.checked()
        return self

    def _check_allowed(self, vocab_size: int) -> None:
        if self.allowed_token_ids is None:
            return
        _sequence("allowed_token_ids", self.allowed_token_ids)
        if not self.allowed_token_ids:
            raise InvalidRequest("allowed_token_ids is empty: no token could be drawn", param="allowed_token_ids")
        for token in self.allowed_token_ids:
            _integer("allowed_token_ids", token, 0, vocab_size - 1, what="a token id of allowed_token_ids")

    def _check_bad_words(self) -> None:
        _sequence("bad_words", self.bad_words)
        if len(self.bad_words) > MAX_BAD_WORDS:
            raise InvalidRequest(
                f"bad_words has {len(self.bad_words)} texts; at most {MAX_BAD_WORDS}", param="bad_words"
            )
        for text in self.bad_words:
            if not isinstance(text, str) or not text:
                raise InvalidRequest("bad_words must be non-empty texts", param="bad_words")

    def _check_bias(self, vocab_size: int) -> None:
        if not isinstance(self.logit_bias, Mapping):
            raise InvalidRequest(
                f"logit_bias must be a table of token ids and numbers, not {quoted(self.logit_bias)}",
                param="logit_bias",
            )
        if len(self.logit_bias) > MAX_LOGIT_BIAS:
            raise InvalidRequest(
                f"logit_bias has {len(self.logit_bias)} entries; at most {MAX_LOGIT_BIAS}", param="logit_bias"
            )
        for token, bias in self.logit_bias.items():
            _integer("logit_bias", token, 0, vocab_size - 1, what="a token id of logit_bias")
            _number("logit_bias", bias, -100.0, 100.0, what=f"logit_bias of token {token}")

    def _check_stops(self, vocab_size: int) -> None:
        for name in ("stop", "stop_token_ids"):
            _sequence(name, getattr(self, name))
        for token in self.stop_token_ids:
            _integer("stop_token_ids", token, 0, vocab_size - 1, what="a token id of stop_token_ids")
        if len(self.stop) > MAX_STOP_STRINGS:
            raise InvalidRequest(f"stop has {len(self.stop)} strings; at most {MAX_STOP_STRINGS}", param="stop")
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise InvalidRequest("stop strings must be non-empty text", param="stop")
        if (size := sum(map(len, self.stop))) > MAX_STOP_CHARACTERS:
            raise InvalidRequest(f"stop has {size} characters; at most {MAX_STOP_CHARACTERS}", param="stop")


def single(value: float) -> float:
    """The number of single precision that executors compute with instead; denormal ones are zero there."""
    (rounded,) = struct.unpack("f", struct.pack("f", value))
    return rounded if abs(rounded) >= _LEAST_SINGLE else 0.0


def _sequence(name: str, values: object) -> None:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise InvalidRequest(f"{name} must be a list, not {quoted(values)}", param=name)


def _number(name: str, value: float, low: float, high: float, *, above_low: bool = False, what: str = "") -> None:
    what = what or name
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidRequest(f"{what} must be a finite number, not {quoted(value)}", param=name)
    if not low <= value <= high or (above_low and value == low):
        bracket = "(" if above_low else "["
        raise InvalidRequest(f"{what} must be in {bracket}{low:g}, {high:g}], not {quoted(value)}", param=name)


def _integer(name: str, value: int, low: int, high: int, *, what: str = "") -> None:
    what = what or name
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(f"{what} must be an integer, not {quoted(value)}", param=name)
    if not low <= value <= high:
        raise InvalidRequest(f"{what} must be between {low} and {high}, not {quoted(value)}", param=name)

"""Grammars over a model's vocabulary: which tokens may follow, so that the text stays one that the grammar has.

The parser is llguidance (https://github.com/guidance-ai/llguidance). What it may spend is bounded: building a lexer,
one step of it, its states, the size of a grammar. White space between JSON's marks is bounded as well, or a model could
fill its whole answer with it.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from tidemill.core.errors import InvalidRequest
from tidemill.core.field_path import field_path
from tidemill.core.grammar import Grammar
from tidemill.core.mask import mask_bytes
from tidemill.text.json_schema import fault_place, tidied

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

    from tidemill.text.tokenizer import Tokenizer

__all__ = ["KEPT_GRAMMARS", "GrammarState", "Grammars"]

KEPT_GRAMMARS: Final = 64
"""Compiled grammars that are kept, the least recently used one making room."""
_WHITE_SPACE: Final = r"[\x20\x0A\x0D\x09]{0,24}"
_STATES: Final = 20_000
"""Most states of a lexer, of one to two kilobytes each."""


class GrammarState:
    """Where a text stands in a grammar. Token by token, and back."""

    def __init__(self, matcher: LLMatcher, vocab_size: int, end_tokens: frozenset[int], name: str) -> None:
        """``name``: what the caller called the grammar."""
        self._matcher = matcher
        self._mask_bytes = mask_bytes(vocab_size)
        self._end_tokens = end_tokens
        self._name = name

    def mask(self) -> bytes:
        """The tokens that may follow (``core.mask``): end tokens where the text may end here; none with a problem."""
        mask = self._matcher.compute_bitmask()[: self._mask_bytes]
        # Where the parser has given up, it would have the text end.
        return bytes(self._mask_bytes) if self._matcher.is_error() else mask

    def consume(self, tokens: Sequence[int]) -> int:
        """Take tokens, as many as may follow; how many that were."""
        return self._matcher.try_consume_tokens(list(tokens))

    def go_back(self, count: int) -> None:
        """Take back the last ``count`` tokens."""
        if count and not self._matcher.rollback(count) and not self.problem:
            raise RuntimeError(f"the grammar cannot go back: {self._matcher.get_error()}")

    def forced(self) -> list[int]:
        """The tokens that have to follow, as the tokenizer cuts them; often none."""
        return [token for token in self._matcher.compute_ff_tokens() if token not in self._end_tokens]

    @property
    def over(self) -> bool:
        """True if nothing may follow but the end."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    @property
    def problem(self) -> str:
        """Why the text cannot go on though it fits: the grammar needs more than one may spend. Else empty. There is
        no way back from it."""
        return f"{self._name}: {_line(self._matcher.get_error())}" if self._matcher.is_error() else ""


class Grammars:
    """Compiles grammars for one model, and keeps them. Safe to use from several threads."""

    def __init__(self, tokenizer: Callable[[], Tokenizer], vocab_size: int, end_tokens: Sequence[int]) -> None:
        """``tokenizer`` is asked for once, when the first grammar comes."""
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._end_tokens = tuple(end_tokens)
        self._lock = threading.Lock()
        self._vocabulary: LLTokenizer | None = None
        self._kept: OrderedDict[Grammar, LLMatcher] = OrderedDict()

    def state(self, grammar: Grammar) -> GrammarState:
        """The beginning of a text. Raises InvalidRequest for a grammar that is wrong, or too much to compile."""
        with self._lock:
            matcher = self._kept.get(grammar)
            if matcher is not None:
                self._kept.move_to_end(grammar)
        if matcher is None:
            matcher = self._compiled(grammar.checked())
            with self._lock:
                self._kept[grammar] = matcher
                if len(self._kept) > KEPT_GRAMMARS:
                    self._kept.popitem(last=False)
        return GrammarState(matcher.deep_copy(), self._vocab_size, frozenset(self._end_tokens), grammar.name)

    def ready(self, grammar: Grammar) -> bool:
        """True if ``state`` has nothing to compile."""
        with self._lock:
            return grammar in self._kept

    def _compiled(self, grammar: Grammar) -> LLMatcher:
        from llguidance import LLMatcher

        if not self._end_tokens:
            raise InvalidRequest(f"{grammar.name}: this model has no end token to end with", param=grammar.name)
        try:
            source = _SOURCES[grammar.kind](grammar)
        except InvalidRequest:
            raise
        except Exception as error:  # the library's own kinds, and RecursionError
            raise _refused(grammar, str(error)) from error
        matcher = LLMatcher(self._vocabulary_of(), source, log_level=0, limits=_limits())
        if matcher.is_error():
            raise _refused(grammar, matcher.get_error(), self._schema_fault(grammar))
        matcher.compute_bitmask()  # the first one builds most of the lexer's states
        if matcher.is_error():
            raise _refused(grammar, matcher.get_error())
        return matcher

    def _schema_fault(self, grammar: Grammar) -> str:
        """The place in a schema of what the parser refuses, as a path; of other grammars there is none."""
        from llguidance import LLMatcher

        if grammar.kind != "json_schema":
            return ""

        def refusal(schema: dict[str, object]) -> str | None:
            matcher = LLMatcher(self._vocabulary_of(), _json_grammar(schema), log_level=0, limits=_limits())
            return matcher.get_error() if matcher.is_error() else None

        return field_path(fault_place(_schema(grammar), refusal))

    def _vocabulary_of(self) -> LLTokenizer:
        with self._lock:
            if self._vocabulary is None:
                self._vocabulary = _vocabulary(self._tokenizer(), self._vocab_size, self._end_tokens)
            return self._vocabulary


class _Cutter:
    """A tokenizer in the shape that llguidance asks for."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, end_tokens: Sequence[int]) -> None:
        special = [token for token in range(vocab_size) if tokenizer.is_special(token)]
        hidden = frozenset((*special, *end_tokens))
        self.eos_token_id = end_tokens[0]
        self.special_token_ids = special
        # A leading FF, which no text has, keeps control tokens out of texts.
        self.tokens = [b"\xff" * (token in hidden) + tokenizer.token_bytes(token) for token in range(vocab_size)]
        self._tokenizer = tokenizer

    def __call__(self, text: str | bytes) -> list[int]:
        whole = text.decode("utf-8", errors="replace") if isinstance(text, bytes) else text
        return self._tokenizer.encode(whole, add_bos=False)


def _vocabulary(tokenizer: Tokenizer, vocab_size: int, end_tokens: Sequence[int]) -> LLTokenizer:
    from llguidance import LLTokenizer, TokenizerWrapper

    cutter = _Cutter(tokenizer, vocab_size, end_tokens)
    return LLTokenizer(TokenizerWrapper(cutter), n_vocab=vocab_size, eos_token=list(end_tokens))


def _limits() -> LLParserLimits:
    from llguidance import LLParserLimits

    return LLParserLimits(max_lexer_states=_STATES, verbose_errors=False)


def _json_object(grammar: Grammar) -> str:
    del grammar
    return _json_grammar({"type": "object"})


def _json_schema(grammar: Grammar) -> str:
    return _json_grammar(_schema(grammar))


def _schema(grammar: Grammar) -> dict[str, object]:
    schema = json.loads(grammar.source)
    if not isinstance(schema, dict | bool):
        raise ValueError("a JSON schema is an object, or true or false")
    return tidied(schema if isinstance(schema, dict) else {} if schema else {"not": {}}, name=grammar.name)


def _json_grammar(schema: dict[str, object]) -> str:
    from llguidance import LLMatcher

    if "x-guidance" in schema:
        raise ValueError('Unimplemented keys: ["x-guidance"]')
    return LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_pattern": _WHITE_SPACE})


def _regex(grammar: Grammar) -> str:
    from llguidance import LLMatcher, regex_to_lark

    return LLMatcher.grammar_from_lark(f"start: /{regex_to_lark(grammar.source, use_ascii='dws')}/")


def _choice(grammar: Grammar) -> str:
    from llguidance import LLMatcher

    texts = " | ".join(json.dumps(text, ensure_ascii=False) for text in dict.fromkeys(grammar.texts()))
    return LLMatcher.grammar_from_lark(f"start: {texts}")


def _lark(grammar: Grammar) -> str:
    from llguidance import LLMatcher
    from llguidance.gbnf_to_lark import any_to_lark

    return LLMatcher.grammar_from_lark(any_to_lark(grammar.source))


def _calls(grammar: Grammar) -> str:
    """Rules made here (``text.answers.call_grammar``), which are no other dialect."""
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_lark(grammar.source)


_SOURCES: Final[dict[str, Callable[[Grammar], str]]] = {
    "json_object": _json_object,
    "json_schema": _json_schema,
    "regex": _regex,
    "choice": _choice,
    "lark": _lark,
    "calls": _calls,
}


def _refused(grammar: Grammar, reason: str, place: str = "") -> InvalidRequest:
    """``place``: where in the grammar's source, as a path."""
    where = f"{grammar.name}.{place}" if place else grammar.name
    return InvalidRequest(f"{where}: {_line(reason)}", param=where)


def _line(message: str) -> str:
    """One line that is not too long."""
    first = " ".join(message.replace("<non-verbose/>", "").split())
    return first if len(first) <= 240 else first[:237] + "..."

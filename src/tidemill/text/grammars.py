"""Grammars over a model's vocabulary: which tokens may follow, so that the text stays one that the grammar has.

The parser is llguidance (https://github.com/guidance-ai/llguidance). What it may spend is bounded: building a lexer,
one step of it, its states, the size of a grammar. White space between JSON's marks is bounded as well, or a model could
fill its whole answer with it.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from tidemill.core.errors import InvalidRequest
from tidemill.core.field_path import field_path
from tidemill.core.grammar import Grammar
from tidemill.core.mask import mask_bytes
from tidemill.text.answers.call_rules import ANSWER, CONTROL, ArgumentsSchema, CallRules
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
        self._controls: tuple[int, ...] = ()
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
        vocabulary = self._vocabulary_of()
        try:
            source = self._source(grammar)
        except InvalidRequest:
            raise
        except Exception as error:  # the library's own kinds, and RecursionError
            raise _refused(grammar.name, str(error)) from error
        matcher = LLMatcher(vocabulary, source, log_level=0, limits=_limits())
        if matcher.is_error():
            raise self._fault(grammar) or _refused(grammar.name, matcher.get_error())
        matcher.compute_bitmask()  # the first one builds most of the lexer's states
        if matcher.is_error():
            raise _refused(grammar.name, matcher.get_error())
        return matcher

    def _source(self, grammar: Grammar) -> str:
        """A grammar as the library reads it."""
        if grammar.kind == "calls":
            return _calls(CallRules.of(grammar), self._controls)
        return _SOURCES[grammar.kind](grammar)

    def _fault(self, grammar: Grammar) -> InvalidRequest | None:
        """Why a grammar is refused, with the place in the request of the schema that it has this from; None: from none
        of its own, nor from the answer that stands beside its calls."""
        for kept in _schemas(grammar):
            said = self._refusal(kept.schema)
            if said is not None:
                return _refused(kept.place, said, tool=kept.tool, within=fault_place(kept.schema, self._refusal))
        answer = CallRules.of(grammar).answer if grammar.kind == "calls" else None
        said = None if answer is None else self._wrong(_SOURCES[answer.kind](answer))
        return None if said is None or answer is None else _refused(answer.name, said)

    def _refusal(self, schema: dict[str, Any]) -> str | None:
        """Why a schema is refused by itself; None if it is not."""
        return self._wrong(_json_grammar(schema))

    def _wrong(self, source: str) -> str | None:
        """What is wrong with a grammar as the library reads it."""
        from llguidance import LLMatcher

        matcher = LLMatcher(self._vocabulary_of(), source, log_level=0, limits=_limits())
        return matcher.get_error() if matcher.is_error() else None

    def _vocabulary_of(self) -> LLTokenizer:
        with self._lock:
            if self._vocabulary is None:
                cutter = _Cutter(self._tokenizer(), self._vocab_size, self._end_tokens)
                self._controls = tuple(set(cutter.special_token_ids) - set(self._end_tokens))
                self._vocabulary = _vocabulary(cutter, self._vocab_size, self._end_tokens)
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


def _vocabulary(cutter: _Cutter, vocab_size: int, end_tokens: Sequence[int]) -> LLTokenizer:
    from llguidance import LLTokenizer, TokenizerWrapper

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


_SOURCES: Final[dict[str, Callable[[Grammar], str]]] = {
    "json_object": _json_object,
    "json_schema": _json_schema,
    "regex": _regex,
    "choice": _choice,
    "lark": _lark,
}


def _calls(calls: CallRules, controls: Sequence[int]) -> str:
    """The rules, with what they name: schemas, control tokens, and another answer as a grammar of its own."""
    lines = [calls.rules]
    for rule, kept in calls.schemas.items():
        guided = {**kept.schema, "x-guidance": {"whitespace_pattern": _WHITE_SPACE}}
        lines.append(f"{rule}: %json {json.dumps(guided)}")
    free = sorted(set(controls) - set(calls.closed))
    lines.append(f"{CONTROL}: <[{','.join(map(str, free))}]>" if free else f"{CONTROL}: NOTHING\nNOTHING: /a/ & /b/")
    if calls.answer is None:
        return "\n".join(lines)
    lines.append(f"{ANSWER}: @{ANSWER}")
    grammars = [{"name": "calls", "lark_grammar": "\n".join(lines)}]
    try:
        source = _SOURCES[calls.answer.kind](calls.answer)
    except InvalidRequest:
        raise
    except Exception as error:
        raise _refused(calls.answer.name, str(error)) from error
    other = json.loads(source)["grammars"][0] if source.startswith("{") else {"lark_grammar": source}
    return json.dumps({"grammars": [*grammars, {**other, "name": ANSWER}]})


def _schemas(grammar: Grammar) -> Iterator[ArgumentsSchema]:
    """The schemas in a grammar."""
    match grammar.kind:
        case "json_schema":
            yield ArgumentsSchema(schema=_schema(grammar), tool="", place=grammar.name)
        case "calls":
            calls = CallRules.of(grammar)
            yield from calls.schemas.values()
            if calls.answer is not None:
                yield from _schemas(calls.answer)


def _refused(name: str, reason: str, *, tool: str = "", within: Sequence[str | int] = ()) -> InvalidRequest:
    """``within``: where in what has that name; ``tool``: whose schema it is."""
    where = f"{name}.{field_path(within)}" if within else name
    whose = f" (function {tool!r})" if tool else ""
    return InvalidRequest(f"{where}{whose}: {_line(reason)}", param=where)


def _line(message: str) -> str:
    """One line that is not too long."""
    first = " ".join(message.replace("<non-verbose/>", "").split())
    return first if len(first) <= 240 else first[:237] + "..."

"""Where chat templates run: Jinja as transformers sets it up, with bounds on time, output and memory.

A template comes with a model's files and is not trusted. Jinja's sandbox keeps it away from Python's internals. Against
templates that hang or fill memory there is a ``Budget`` for each rendering, asked at each place where work can grow:

- the body of every loop and macro is preceded by a check of the time and of the number of rounds;
- every printed value and every string joined with ``~`` is charged by its length before it is kept, and so is the
  constant text of each loop's body, so that strings captured in variables cannot double without end;
- ``+ * ** %`` and the methods and filters that make much out of little (``replace``, ``join``, ``center``, ``indent``,
  ...) are checked before they run.

So what can run between two checks is one operation on bounded operands.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from functools import wraps
from itertools import islice
from typing import Any, cast

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from tidemill.core.clock import Clock

__all__ = ["Budget", "Refusal", "TemplateEnvironment"]

MAX_CHARACTERS = 32 * 2**20
MAX_ROUNDS = 1_000_000
MAX_ITEMS = 1_000_000
MAX_WIDTH = 1_000
MAX_INTEGER_BITS = 4_096


class Refusal(TemplateError):
    """The template called raise_exception: the message is its own reason."""


class Budget:
    """What one rendering may still use. Raises SecurityError where it is used up."""

    def __init__(self, clock: Clock, *, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._deadline = clock.now() + seconds
        self._rounds = MAX_ROUNDS
        self._characters = MAX_CHARACTERS

    def round(self, characters: int) -> None:
        """One more round of a loop or call of a macro, whose constant text has this length."""
        self._rounds -= 1
        if self._rounds < 0:
            raise SecurityError(f"it loops more than {MAX_ROUNDS} times")
        self.charge(characters)

    def charge(self, characters: int) -> None:
        """Text of this length is about to be made."""
        self._characters -= characters
        if self._characters < 0:
            raise SecurityError(f"it makes more than {MAX_CHARACTERS} characters of text")
        if self._clock.now() > self._deadline:
            raise SecurityError(f"it takes longer than {self._seconds:g} s")


_budget: ContextVar[Budget] = ContextVar("template_budget")


def _round(characters: int) -> str:
    _budget.get().round(characters)
    return ""


def _joined(*values: Any) -> str:
    for value in values:
        _weigh(value)
    return "".join(map(str, values))


def _made(value: Any) -> Any:
    """A list, tuple or dictionary that the template wrote out: its parts may repeat each other without end."""
    _weigh(value)
    return value


def _printed(value: Any) -> Any:
    _weigh(value)
    return value


def _weigh(value: Any) -> None:
    """Charge for everything in a value, parts that occur twice counted twice, as printing them would."""
    if isinstance(value, str):
        _charge(len(value))
        return
    stack = [value]
    while stack:
        item = stack.pop()
        _charge(len(item) if isinstance(item, str) else 1)
        if isinstance(item, Mapping):
            stack.extend(item)
            stack.extend(item.values())
        elif isinstance(item, list | tuple):
            stack.extend(item)


class _Generation(Extension):
    """``{% generation %}``: marks the assistant's tokens for training; here its body is printed, in its own scope."""

    tags: set[str] = {"generation"}  # noqa: RUF012 -- Jinja declares it on the instance

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Dict:
    """``dict`` as a function, without the attributes of the class."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _made(dict(*args, **kwargs))


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Compiles templates from source; ``spending`` gives a rendering its budget."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self, *, today: Callable[[], datetime] = datetime.now) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, finalize=_printed, extensions=[_Generation, loopcontrols]
        )
        self.bounded_round = _round
        self.bounded_join = _joined
        self.bounded_made = _made
        self.filters = {name: _guarded(name, made) for name, made in self.filters.items() if name not in _NO_FILTERS}
        self.tests = {name: _counted(cast(Callable[..., Any], made)) for name, made in self.tests.items()}
        self.filters["tojson"] = _guarded("tojson", _tojson)
        del self.globals["lipsum"]
        self.globals["dict"] = _Dict()
        self.globals["namespace"] = Namespace
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda form: today().strftime(_checked_format(form))

    @contextmanager
    def spending(self, budget: Budget) -> Iterator[None]:
        """Renderings inside, in this thread or task, are charged to the budget."""
        token = _budget.set(budget)
        try:
            yield
        finally:
            _budget.reset(token)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for block in tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock)):
            cast(nodes.For, block).body.insert(0, _round_statement(block))
        _check_expressions(tree)
        tree.set_environment(self)
        return tree

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Jinja's hook for operators; checks what the result would weigh."""
        _CHECKS[operator](left, right)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, called: Any, *args: Any, **kwargs: Any) -> Any:
        """Jinja's hook for calls; checks string methods that make much out of little."""
        owner = getattr(called, "__self__", None)
        if isinstance(owner, str):
            _check_text_method(called.__name__, owner, args, kwargs)
        return super().call(context, called, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Jinja's hook for ``format`` and ``format_map`` of a string; checks what they would print."""
        formatted = super().wrap_str_format(value)
        if formatted is None:
            return None

        def checked(*args: Any, **kwargs: Any) -> str:
            _check_filled(_checked_format(value.__self__, _WIDE_BRACES), "{", (args, kwargs))
            return formatted(*args, **kwargs)

        return checked


# Markup helpers with costly expressions, and chance: no chat template needs them.
_NO_FILTERS = frozenset({"urlize", "xmlattr", "random"})
_WIDTH_FILTERS = frozenset({"batch", "center", "indent", "round", "slice", "tojson", "truncate", "wordwrap"})
_WIDTH_METHODS = frozenset({"center", "expandtabs", "ljust", "rjust", "zfill"})
# A width of four digits or more, or one taken from the arguments, in %-formats and in format strings.
_WIDE_PERCENT = re.compile(r"%[^%a-zA-Z]*(?:\d{4}|\*)|%\([^)]*\)[^%a-zA-Z]*\d{4}")
_WIDE_BRACES = re.compile(r"\{[^{}]*(?:\d{4}|\{)")


def _round_statement(block: nodes.Node) -> nodes.ExprStmt:
    constant = sum(len(text.data) for text in block.find_all(nodes.TemplateData))
    constant += sum(len(value.value) for value in block.find_all(nodes.Const) if isinstance(value.value, str))
    return nodes.ExprStmt(_call("bounded_round", [nodes.Const(constant)], block.lineno), lineno=block.lineno)


def _check_expressions(parent: nodes.Node) -> None:
    """Put the checks around all joins and written-out containers below a node."""
    for field, value in parent.iter_fields():
        if isinstance(value, nodes.Node):
            _check_expressions(value)
            setattr(parent, field, _checked(value))
        elif isinstance(value, list):
            for item in value:
                if isinstance(item, nodes.Node):
                    _check_expressions(item)
            value[:] = map(_checked, value)


def _checked(node: Any) -> Any:
    if isinstance(node, nodes.Concat):
        return _call("bounded_join", node.nodes, node.lineno)
    if isinstance(node, nodes.List | nodes.Tuple | nodes.Dict) and getattr(node, "ctx", "load") == "load":
        return _call("bounded_made", [node], node.lineno) if node.find(nodes.Name) else node
    return node


def _call(name: str, args: list[nodes.Expr], line: int) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), args, [], None, None, lineno=line)


def _guarded(name: str, made: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(made)  # carries over the marks by which Jinja passes context or environment
    def guarded(*args: Any, **kwargs: Any) -> Any:
        _budget_round()
        given = args[1:] if hasattr(made, "jinja_pass_arg") else args
        if name == "tojson":
            _weigh(given[0])
        if name in _WIDTH_FILTERS:
            _check_widths(given[1:], kwargs)
        elif name == "format":
            _check_remainder(given[0], (*given[1:], *kwargs.values()))
        elif name == "replace":
            _check_text_method("replace", str(given[0]), tuple(map(str, given[1:3])), {})
        elif name in ("string", "pprint"):
            _weigh(given[0])
        elif name == "join":
            args = _checked_join(args, given, kwargs)
        elif name == "sum" and not isinstance(kwargs.get("start", (*given, 0, 0, 0)[2]), int | float):
            raise SecurityError("sum is for numbers")
        return made(*args, **kwargs)

    return guarded


def _counted(made: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(made)
    def counted(*args: Any, **kwargs: Any) -> Any:
        _budget_round()
        return made(*args, **kwargs)

    return counted


def _budget_round() -> None:
    budget = _budget.get(None)
    if budget is not None:
        budget.round(0)


def _checked_join(args: tuple[Any, ...], given: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Arguments of the filter join with its items listed, once their joint length is known to be in bounds."""
    items = list(islice(given[0], MAX_ITEMS + 1))
    _check_items(len(items))
    between = str(kwargs.get("d", given[1] if len(given) > 1 else ""))
    _weigh(items)
    _charge(len(between) * len(items))
    before = args[: len(args) - len(given)]
    return (*before, items, *given[1:])


def _check_text_method(name: str, owner: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    if name in _WIDTH_METHODS:
        _check_widths(args, kwargs)
    elif name == "replace" and len(args) >= 2:
        old, new = str(args[0]), str(args[1])
        count = owner.count(old) if old else len(owner) + 1
        _charge(len(owner) + count * len(new))
    elif name == "join" and args:
        _charge(sum(len(item) for item in args[0] if isinstance(item, str)) + len(owner) * len(args[0]))
    elif name == "translate":
        raise SecurityError("translate is not available")


def _charge(characters: int) -> None:
    budget = _budget.get(None)
    if budget is not None:
        budget.charge(characters)
    elif characters > MAX_CHARACTERS:
        raise SecurityError(f"it makes more than {MAX_CHARACTERS} characters of text")


def _check_widths(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    for value in (*args, *kwargs.values()):
        wide = (
            value > MAX_WIDTH if isinstance(value, int | float) else isinstance(value, str) and len(value) > MAX_WIDTH
        )
        if wide:
            raise SecurityError(f"it asks for a width over {MAX_WIDTH}")


def _checked_format(form: Any, wide: re.Pattern[str] = _WIDE_PERCENT) -> str:
    text = str(form)
    if wide.search(text):
        raise SecurityError(f"it asks for a width over {MAX_WIDTH}")
    return text


def _check_filled(form: str, sign: str, values: Any) -> None:
    """Each place of a format may print any of the values."""
    for _ in range(form.count(sign)):
        _weigh(values)


def _check_items(count: int) -> None:
    if count > MAX_ITEMS:
        raise SecurityError(f"it makes a list of more than {MAX_ITEMS} items")


def _check_sum(left: Any, right: Any) -> None:
    if isinstance(left, str) and isinstance(right, str):
        _charge(len(left) + len(right))
    elif isinstance(left, list | tuple) and isinstance(right, list | tuple):
        _check_items(len(left) + len(right))


def _check_product(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() + right.bit_length())
        return
    repeated, times = (right, left) if isinstance(left, int) else (left, right)
    if not isinstance(times, int):
        return
    if isinstance(repeated, str):
        _charge(len(repeated) * max(times, 0))
    elif isinstance(repeated, list | tuple):
        _check_items(len(repeated) * max(times, 0))


def _check_power(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() * max(right, 0))


def _check_bits(bits: int) -> None:
    if bits > MAX_INTEGER_BITS:
        raise SecurityError("it computes with too large numbers")


def _check_remainder(left: Any, right: Any) -> None:
    if isinstance(left, str):
        _check_filled(_checked_format(left), "%", right)


_CHECKS: dict[str, Callable[[Any, Any], None]] = {
    "+": _check_sum,
    "*": _check_product,
    "**": _check_power,
    "%": _check_remainder,
}


def _raise_exception(message: Any = "no reason given") -> None:
    raise Refusal(str(message))


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as Python writes it; Jinja's own filter would escape ``<``, ``>``, ``&`` and ``'`` for HTML."""
    if separators is not None and sum(map(len, separators)) > MAX_WIDTH:
        raise SecurityError(f"it asks for a width over {MAX_WIDTH}")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

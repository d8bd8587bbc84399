"""Where chat templates run: Jinja as transformers sets it up, with bounds on time, output and memory.

A template comes with a model's files and is not trusted. Jinja's sandbox keeps it away from Python's internals. Against
templates that hang or fill memory there is a budget for each rendering (``template_budget``), asked at each place where
work can grow:

- the body of every loop and macro is preceded by a check of the time and of the number of rounds;
- every printed value and every string joined with ``~`` is charged by its length before it is kept, and so is the
  constant text of each loop's body, so that strings captured in variables cannot double without end;
- slices, lists that are written out, and what filters and methods give are charged as they are made;
- what comparisons, filters, tests and methods look at is bounded before they look;
- operators, methods and filters that make much out of little (``* replace join indent``, ...) are checked before they
  run (``template_checks``), and methods that no template needs are not there.

So what can run between two checks is one operation on bounded operands.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, cast

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from tidemill.text.template_budget import another_round, charge, charge_whole, read_whole
from tidemill.text.template_checks import (
    NO_FILTERS,
    OPERATORS,
    check_braces,
    check_call,
    check_result,
    checked_date_format,
    guarded,
    guarded_test,
    to_json,
)

__all__ = ["MAX_SOURCE", "Refusal", "TemplateEnvironment"]

MAX_SOURCE = 256 * 2**10
"""Characters of one template: ten times what published ones have, and what compiles in about a second."""


class Refusal(TemplateError):
    """The template called raise_exception: the message is its own reason."""


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
    """Compiles templates from source; they run on the budget that is being spent (``template_budget.spending``)."""

    intercepted_binops = frozenset(OPERATORS)

    def __init__(self, *, today: Callable[[], datetime] = datetime.now) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, finalize=_made, extensions=[_Generation, loopcontrols])
        self.bounded_round = _round
        self.bounded_join = _joined
        self.bounded_made = _made
        self.bounded_read = _read
        self.bounded_slice = _sliced
        filters = {name: made for name, made in self.filters.items() if name not in NO_FILTERS} | {"tojson": to_json}
        self.filters = {name: guarded(name, made) for name, made in filters.items()}
        self.tests = {name: guarded_test(cast(Callable[..., Any], made)) for name, made in self.tests.items()}
        del self.globals["lipsum"]
        self.globals["dict"] = _Dict()
        self.globals["namespace"] = Namespace
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda form: today().strftime(checked_date_format(form))

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for block in tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock)):
            cast(nodes.For, block).body.insert(0, _round_statement(block))
        _check_expressions(tree)
        tree.set_environment(self)
        return tree

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Jinja's hook for operators; checks what the result would weigh."""
        OPERATORS[operator](left, right)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, called: Any, *args: Any, **kwargs: Any) -> Any:
        """Jinja's hook for calls; checks methods, and charges for what they make."""
        check_call(called, args, kwargs)
        result = super().call(context, called, *args, **kwargs)
        check_result(called, result)
        return result

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Jinja's hook for ``format`` and ``format_map`` of a string; checks what they would print."""
        formatted = super().wrap_str_format(value)
        if formatted is None:
            return None

        def checked(*args: Any, **kwargs: Any) -> str:
            check_braces(value.__self__, args, kwargs)
            return formatted(*args, **kwargs)

        return checked


def _round(characters: int) -> str:
    another_round(characters)
    return ""


def _joined(*values: Any) -> str:
    for value in values:
        charge_whole(value)
    return "".join(map(str, values))


def _made(value: Any) -> Any:
    """What is printed, or written out as a list: its parts may repeat each other without end."""
    charge_whole(value)
    return value


def _read(value: Any) -> Any:
    """What is compared."""
    read_whole(value)
    return value


def _sliced(value: Any) -> Any:
    """A part of a text or list."""
    if isinstance(value, str):
        charge(len(value))
    elif isinstance(value, list | tuple):
        charge(2 * len(value))  # little: nothing new is in it, and templates do this in a loop over all messages
    return value


def _round_statement(block: nodes.Node) -> nodes.ExprStmt:
    constant = sum(len(text.data) for text in block.find_all(nodes.TemplateData))
    constant += sum(len(value.value) for value in block.find_all(nodes.Const) if isinstance(value.value, str))
    return nodes.ExprStmt(_call("bounded_round", [nodes.Const(constant)], block.lineno), lineno=block.lineno)


def _check_expressions(parent: nodes.Node) -> None:
    """Put the checks around all that makes or compares values below a node."""
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
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        return _call("bounded_slice", [node], node.lineno)
    if isinstance(node, nodes.Compare):
        node.expr = _compared(node.expr)
        for operand in node.ops:
            operand.expr = _compared(operand.expr)
    return node


def _compared(node: nodes.Expr) -> nodes.Expr:
    return node if isinstance(node, nodes.Const) else _call("bounded_read", [node], node.lineno)


def _call(name: str, args: list[nodes.Expr], line: int) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), args, [], None, None, lineno=line)


def _raise_exception(message: Any = "no reason given") -> None:
    raise Refusal(str(message))

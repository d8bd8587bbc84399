"""A model's chat template: messages in, the prompt's text out.

Set up as transformers sets it up (see ``template_sandbox`` for the bounds it runs in). Nothing here knows tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Template, TemplateSyntaxError, nodes

from tidemill.core.clock import Clock, SystemClock
from tidemill.core.errors import InvalidRequest, TemplateRejected
from tidemill.text.template_budget import Budget, spending
from tidemill.text.template_sandbox import MAX_SOURCE, Refusal, TemplateEnvironment

__all__ = ["ChatTemplate"]

MAX_SECONDS = 2.0
_ROOTS = frozenset({"messages", "tools"})


class ChatTemplate:
    """All templates of one model, compiled when built.

    A template that does not compile is no reason to refuse the model: plain completions work without it. ``problem``
    tells what is wrong with it, and ``render`` raises it.
    """

    def __init__(
        self,
        templates: Mapping[str, str],
        *,
        special_tokens: Mapping[str, str],
        clock: Clock | None = None,
        environment: TemplateEnvironment | None = None,
        seconds: float = MAX_SECONDS,
    ) -> None:
        """``templates``: Jinja sources by name. ``special_tokens``: variables such as ``bos_token`` and their texts."""
        self._environment = environment or TemplateEnvironment()
        self._special_tokens = dict(special_tokens)
        self._clock = clock or SystemClock()
        self._seconds = seconds
        self._compiled: dict[str, Template] = {}
        self._broken: dict[str, str] = {}
        self._reads: set[str] = set()
        for name, source in templates.items():
            self._compile(name, source)

    @property
    def reads(self) -> frozenset[str]:
        """Names of the variables that any of the templates looks at."""
        return frozenset(self._reads)

    @property
    def problem(self) -> str | None:
        """Why chat will not work, in one line; None if it will."""
        if not self._compiled and not self._broken:
            return "the model has no chat template"
        return next(iter(self._broken.values()), None)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text, up to where the assistant's answer begins.

        ``messages``: normalised. ``options``: further variables (``add_generation_prompt`` is true unless named here).
        Raises TemplateRejected with the template's own reason, or with what went wrong in it; InvalidRequest if there
        is no template, or an option has the name of a variable that is not the caller's.
        """
        template = self._chosen(bool(tools))
        variables = self._variables(options or {})
        try:
            with spending(Budget(self._clock, seconds=self._seconds)):
                return template.render(messages=list(messages), tools=list(tools) if tools else None, **variables)
        except Refusal as refusal:
            raise TemplateRejected(f"the chat template refused the messages: {_line(refusal)}") from refusal
        except RecursionError as error:
            raise TemplateRejected("the chat template nests too deep") from error
        except Exception as error:  # whatever a template does wrong is the request's end, never the server's
            raise TemplateRejected(f"the chat template failed: {_line(error)}") from error

    def _variables(self, options: Mapping[str, Any]) -> dict[str, Any]:
        for name in options:
            if name in _ROOTS or name in self._special_tokens:
                raise InvalidRequest(f"the template option {name!r} cannot be set", param="chat_template_kwargs")
        return {**self._special_tokens, "documents": None, "add_generation_prompt": True, **options}

    def _compile(self, name: str, source: str) -> None:
        if len(source) > MAX_SOURCE:
            self._broken[name] = (
                f"the chat template {_line(name)!r} has {len(source)} characters, more than {MAX_SOURCE}"
            )
            return
        try:
            self._compiled[name] = self._environment.from_string(source)
            names = self._environment.parse(source).find_all(nodes.Name)
            self._reads.update(node.name for node in names if node.ctx == "load")
        except TemplateSyntaxError as error:
            self._broken[name] = (
                f"the chat template {_line(name)!r} has a syntax error in line {error.lineno}: {_line(error)}"
            )
        except Exception as error:  # such as nesting too deep for the compiler
            self._broken[name] = f"the chat template {_line(name)!r} cannot be compiled: {_line(error)}"

    def _chosen(self, with_tools: bool) -> Template:
        known = self._compiled.keys() | self._broken.keys()
        if not known:
            raise InvalidRequest(
                "the model has no chat template: ask for a completion, or give one with chat_template at the start",
                param="messages",
            )
        name = "tool_use" if with_tools and "tool_use" in known else "default"
        if name in self._broken:
            raise TemplateRejected(self._broken[name])
        if name not in known:
            raise InvalidRequest(
                f"the model has no chat template named {name!r}, only {', '.join(sorted(known))}", param="messages"
            )
        return self._compiled[name]


def _line(said: BaseException | str) -> str:
    """A message on one line, of bounded length."""
    text = " ".join(str(said).split()) or type(said).__name__
    return text if len(text) <= 500 else f"{text[:500]}..."

"""What a request says about reasoning, made into variables of the chat template and a budget for the engine.

effort          the template's variable, if it reads one; none is off everywhere
on and off      the template's switch, if it has one
off, a budget   the mark that ends reasoning is drawn after so many tokens, 0 for off
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.core.errors import InvalidRequest, UnsupportedParameter
from tidemill.core.grammar import Grammar
from tidemill.core.reasoning import ReasoningBudget, ReasoningOptions
from tidemill.core.sampling import SamplingOptions
from tidemill.text.answers.form import AnswerForm

__all__ = ["reasoning_budget", "template_variables"]

_EFFORT = "reasoning_effort"


def template_variables(given: Mapping[str, Any], asked: ReasoningOptions, form: AnswerForm) -> Mapping[str, Any]:
    """The template's variables: those given, and those that reasoning is asked for with.

    Raises UnsupportedParameter for what the model cannot be asked for, and InvalidRequest where the two differ.
    """
    options = dict(given)
    if asked.effort is not None and form.reads(_EFFORT):
        _set(options, _EFFORT, asked.effort, asked.effort_field)
    elif asked.effort not in (None, "none"):
        raise UnsupportedParameter(
            f"{asked.effort_field}: the model's chat template knows no {_EFFORT}; none switches reasoning off, "
            "and thinking_budget bounds it",
            param=asked.effort_field,
        )
    enabled, field = _switched(asked, form)
    if enabled and not form.reasons:
        raise UnsupportedParameter(f"{field}: this model's chat template shows no reasoning", param=field)
    if enabled is not None and form.switch is not None:
        _set(options, form.switch, enabled, field)
    return options


def reasoning_budget(
    asked: ReasoningOptions, sampling: SamplingOptions, form: AnswerForm, *, opened: bool
) -> ReasoningBudget | None:
    """How long the reasoning may be. ``opened``: the prompt ends within it; ``sampling``: as the engine will have it.

    Raises UnsupportedParameter where it cannot be bounded, and InvalidRequest where something else forbids it.
    """
    enabled, field = _switched(asked, form)
    if enabled is False:
        if asked.budget:
            raise InvalidRequest(f"{field} switches reasoning off: leave {asked.budget_field} out", param=field)
        return _off(sampling, form, field, opened=opened)
    if asked.budget is None:
        return None
    field = asked.budget_field
    if sampling.grammar is not None and _all_of_it(sampling.grammar):
        raise InvalidRequest(f"{field}: an answer to {sampling.grammar.name} has no reasoning", param=field)
    budget = form.budget(asked.budget, opened=opened)
    if budget is None:
        raise UnsupportedParameter(
            f"{field}: this model's chat template shows no reasoning between two marks of one token each", param=field
        )
    allowed = sampling.allowed_token_ids
    if allowed is not None and budget.close not in allowed:
        raise InvalidRequest(
            f"allowed_token_ids lacks token {budget.close}, which ends the reasoning", param="allowed_token_ids"
        )
    return budget


def _switched(asked: ReasoningOptions, form: AnswerForm) -> tuple[bool | None, str]:
    """On, off or neither, and the field that says so."""
    if asked.enabled is not None:
        return asked.enabled, asked.enabled_field
    off = asked.effort == "none" and not form.reads(_EFFORT)
    return (False, asked.effort_field) if off else (None, "")


def _off(sampling: SamplingOptions, form: AnswerForm, field: str, *, opened: bool) -> ReasoningBudget | None:
    """No reasoning at all, of models that do some: what the template has not switched off ends as it begins."""
    if not form.reasons or (sampling.grammar is not None and _all_of_it(sampling.grammar)):
        return None
    budget = form.budget(0, opened=opened)
    if budget is None and form.switch is None:
        raise UnsupportedParameter(f"{field}: this model's reasoning cannot be switched off", param=field)
    return budget


def _all_of_it(grammar: Grammar) -> bool:
    """Whether an answer is a text of the caller's grammar from its first token on."""
    return grammar.kind != "calls"


def _set(options: dict[str, Any], name: str, value: object, field: str) -> None:
    if options.setdefault(name, value) != value:
        raise InvalidRequest(f"{field} and chat_template_kwargs.{name} differ: send one", param=field)

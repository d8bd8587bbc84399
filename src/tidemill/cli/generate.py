"""``tidemill generate``: one completion, printed as it comes."""

from __future__ import annotations

import dataclasses
import json as jsonlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemill.cli.adapter import first_adapter
from tidemill.cli.default import DEFAULT_MODEL, ModelArgument, explained
from tidemill.cli.models_file import ModelsFileOption, named
from tidemill.cli.options import DebugOption, JsonOption, with_settings
from tidemill.core.config import EngineConfig, ExecutorConfig, ModelConfig, SchedulerConfig
from tidemill.core.errors import ConfigError
from tidemill.core.grammar import Grammar
from tidemill.core.sampling import SamplingOptions

if TYPE_CHECKING:
    from tidemill.llm import LLM, Completion

__all__ = ["generate"]

PromptOption = Annotated[
    str | None, typer.Option("--prompt", "-p", help="The text to go on from; - or nothing: read standard input.")
]
ChatOption = Annotated[
    bool, typer.Option("--chat", help="Treat the prompt as a user's message: apply the chat template.")
]


@with_settings(SamplingOptions, ModelConfig, ExecutorConfig, SchedulerConfig, EngineConfig, without=("grammar",))
def generate(
    model: ModelArgument = DEFAULT_MODEL,
    prompt: PromptOption = None,
    chat: ChatOption = False,
    *,
    json_schema: Annotated[
        Path | None, typer.Option("--json-schema", metavar="FILE", help="Answer with JSON that this schema accepts.")
    ] = None,
    regex: Annotated[
        str | None, typer.Option("--regex", help="Answer with a text that this expression matches as a whole.")
    ] = None,
    models_file: ModelsFileOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 (read by main)
    **settings: Any,
) -> None:
    """Complete one prompt and print the text. With --lora NAME=PATH, with that adapter."""
    from tidemill.llm import LLM

    text = sys.stdin.read() if prompt in (None, "-") else prompt
    if not text:
        raise ConfigError("prompt is empty; give one with -p or on standard input", param="prompt")
    model, settings = named(model, settings, models_file)
    names = {item.name for item in dataclasses.fields(SamplingOptions)}
    sampling = SamplingOptions(
        **{name: value for name, value in settings.items() if name in names}, grammar=_grammar(json_schema, regex)
    )
    with explained(model), LLM(model, **{n: v for n, v in settings.items() if n not in names}) as llm:
        if json or sampling.n > 1:
            lora = first_adapter(llm)
            answer = (
                llm.chat(_message(text), sampling, lora=lora)[0] if chat else llm.generate(text, sampling, lora=lora)[0]
            )
            _print_whole(answer, as_json=json)
        else:
            _print_stream(llm, text, sampling, chat=chat)


def _grammar(schema: Path | None, regex: str | None) -> Grammar | None:
    if schema is None:
        return None if regex is None else Grammar.regex(regex, name="regex")
    if regex is not None:
        raise ConfigError("json_schema and regex both say how the answer looks: give one", param="regex")
    try:
        content = jsonlib.loads(schema.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"json_schema: {schema} cannot be read: {error}", param="json_schema") from error
    if not isinstance(content, dict | bool):
        raise ConfigError(f"json_schema: {schema} holds no schema, which is a JSON object", param="json_schema")
    return Grammar.json_schema(content, name="json_schema")


def _message(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def _print_stream(llm: LLM, text: str, sampling: SamplingOptions, *, chat: bool) -> None:
    lora = first_adapter(llm)
    pieces = llm.stream_chat(_message(text), sampling, lora=lora) if chat else llm.stream(text, sampling, lora=lora)
    for piece in pieces:
        sys.stdout.write(piece.text)
        sys.stdout.flush()
    sys.stdout.write("\n")


def _print_whole(answer: Completion, *, as_json: bool) -> None:
    if as_json:
        print(jsonlib.dumps(answer.as_dict(), ensure_ascii=False))
        return
    for number, choice in enumerate(answer.choices):
        print(f"--- choice {number}\n{choice.text}")

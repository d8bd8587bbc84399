"""docs/http-api.md says what the code does: every route, field, error and metric, and examples that run."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from tidemill.core import errors
from tidemill.core.embedding import Embedding
from tidemill.core.metrics import METRICS
from tidemill.serve.anthropic_request import ANTHROPIC_IGNORED
from tidemill.serve.app import ENDPOINTS
from tidemill.serve.embedding_schema import EmbeddingBody
from tidemill.serve.fields import IGNORED, NOT_BUILT
from tidemill.serve.responses_request import NOT_KEPT, ResponsesBody
from tidemill.serve.schemas import ChatBody, CompletionBody

PAGE = (Path(__file__).parents[2] / "docs" / "http-api.md").read_text()


def _section(title: str) -> str:
    """The text under a heading, up to the next one of any level."""
    return re.split(r"^#+ ", PAGE.split(f"# {title}\n", 1)[1], maxsplit=1, flags=re.M)[0]


def _first_cells(section: str) -> set[str]:
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def test_every_route():
    routes = {route.split(" ")[1] for route in _first_cells(_section("Routes"))}
    assert routes - {"/v1/models/{id}"} == ENDPOINTS.keys()


def test_every_field():
    common = _first_cells(_section("Fields of both routes")) | _first_cells(_section("Structured output"))
    assert common | _first_cells(_section("Chat only")) == ChatBody.model_fields.keys()
    assert common | _first_cells(_section("Completions only")) == CompletionBody.model_fields.keys()


def test_every_field_of_embeddings():
    assert _first_cells(_section("Fields of embeddings")) == EmbeddingBody.model_fields.keys()


def test_every_field_of_responses():
    assert _first_cells(_section("Fields of responses")) == ResponsesBody.model_fields.keys()
    page = PAGE.split("\n## Responses\n")[1].split("\n## ")[0]
    called_otherwise = {"messages", "max_tokens", "max_completion_tokens", "reasoning_effort", "response_format"}
    assert [name for name in NOT_KEPT.keys() - called_otherwise if f"`{name}`" not in page] == []


def test_fields_that_are_ignored_or_refused():
    assert set(re.findall(r"`(\w+)`", _section("Ignored"))) == IGNORED
    listed = re.findall(r"`(\w+)`(?:\s+\((.*?)\))?[,.]", _section("Refused").split(":", 1)[1], re.S)
    documented = {name: json.loads(f"[{values}]") for name, values in listed}
    assert documented == {name: list(values) for name, values in NOT_BUILT.items() if name != "best_of"}


def test_fields_of_anthropics_that_are_ignored():
    listed = re.search(r"((?:`\w+`(?:, | and )?)+) are ignored\. Whatever", _section("Anthropic's messages"))
    assert set(re.findall(r"`(\w+)`", listed[1])) == set(ANTHROPIC_IGNORED)


def test_every_error_that_a_caller_can_get():
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", _section("Errors"), re.M)
    outside = [
        error
        for error in vars(errors).values()
        if isinstance(error, type)
        and issubclass(error, errors.TidemillError)
        and not issubclass(error, errors.SetupError)
    ]
    assert sorted(rows) == sorted((str(error.status), error.code) for error in outside)


def test_every_metric():
    rows = re.findall(r"^\| `([\w:]+)` \| (\w+) \| (.*?) \| (.*) \|$", _section("Metrics"), re.M)
    assert rows == [
        (m.name, str(m.kind), ", ".join(f"`{label}`" for label in m.labels) or "-", m.help) for m in METRICS
    ]


CURLS = [shlex.split(command.replace("\\\n", " ")) for command in re.findall(r"^curl (?:.*\\\n)*.*$", PAGE, re.M)]


@pytest.mark.parametrize("command", CURLS, ids=str)
async def test_the_curl_examples_are_answered(http, command):
    url = next(word for word in command if word.startswith("http://"))
    header = command[command.index("-H") + 1].split(": ")
    embedding = Embedding(pooling="mean", normalize=True, width=4) if url.endswith("embeddings") else None
    async with http(list(b"ok"), embedding=embedding) as served:
        path = url.removeprefix("http://127.0.0.1:8000")
        answer = await served.client.post(path, content=command[command.index("-d") + 1], headers=[header])
    assert answer.status_code == 200
    assert len(CURLS) == 9

"""Scripts as files, and the HTTP stub as an OpenAI client sees it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from openai import APIStatusError, AsyncOpenAI

from tidemill.bench.scripted.script import Script, ScriptedAnswer, Step, read_script
from tidemill.bench.scripted.server import ScriptedServer
from tidemill.cli.bench_stub import EXAMPLES
from tidemill.core.errors import ConfigError


def write(folder: Path, value: object) -> Path:
    path = folder / "script.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def test_a_file_says_what_the_classes_say(tmp_path: Path) -> None:
    steps = [{"role": True}, {"after": 0.05, "tokens": 4, "channel": "reasoning"}, {"tokens": 1, "times": 0}]
    answers = [
        {"delay": 1, "steps": steps, "headers": {"x": "1"}, "cached_tokens": 3},
        {"status": 429, "message": "full"},
    ]
    assert read_script(write(tmp_path, {"model": "m", "answers": answers})) == Script(
        model="m",
        answers=(
            ScriptedAnswer(
                delay=1,
                headers={"x": "1"},
                cached_tokens=3,
                steps=(Step(role=True), Step(after=0.05, tokens=4, channel="reasoning"), Step(tokens=1, times=0)),
            ),
            ScriptedAnswer(status=429, message="full"),
        ),
    )
    assert read_script(write(tmp_path, {})) == Script()


def test_the_example_in_the_help_can_be_read(tmp_path: Path) -> None:
    (example,) = re.findall(r"^\{.*\}$", EXAMPLES, re.MULTILINE | re.DOTALL)
    assert len(read_script(write(tmp_path, example)).answers) == 3


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("{", "is not JSON"),
        ([], "must be a table"),
        ({"answer": []}, "there is no answer"),
        ({"answers": []}, "a list that is not empty"),
        ({"answers": [{"status": 302}]}, "answer 0: status"),
        ({"answers": [{}, {"delay": -1}]}, "answer 1: delay must not be negative"),
        ({"answers": [{"delay": "1"}]}, "answer 0: delay must be of type float"),
        ({"answers": [{"steps": [{"after": 1}]}]}, "answer 0, step 0: must have exactly one of"),
        ({"answers": [{"steps": [{"tokens": 1, "done": True}]}]}, "exactly one of"),
        ({"answers": [{"steps": [{"tokens": 1, "channel": "smell"}]}]}, "channel"),
        ({"answers": [{"steps": [{"role": True, "times": 0}]}]}, "times 0"),
        ({"answers": [{"steps": [{"tokens": True}]}]}, "tokens must be of type int"),
        ({"answers": [{"headers": []}]}, "headers"),
    ],
)
def test_scripts_that_cannot_be_are_refused_with_their_place(tmp_path: Path, value: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_script(write(tmp_path, value))


async def test_an_openai_client_gets_what_the_script_says() -> None:
    steps = (Step(role=True), Step(tokens=2), Step(tokens=1, channel="tool"), Step(tokens=3))
    server = ScriptedServer(Script(answers=(ScriptedAnswer(steps=steps, cached_tokens=1), ScriptedAnswer(status=404))))
    port = await server.start()
    client = AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="k", max_retries=0)
    try:
        assert [model.id async for model in client.models.list()] == ["scripted"]
        stream = await client.chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": "two words"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == " tide" * 5
        usage = chunks[-1].usage
        assert usage is not None
        assert (usage.prompt_tokens, usage.completion_tokens) == (2, 6)
        with pytest.raises(APIStatusError, match="the script says so"):
            await client.completions.create(model="m", prompt="x", stream=True)
        assert [seen.path for seen in server.seen] == ["/v1/chat/completions", "/v1/completions"]
        assert server.seen[0].headers["authorization"] == "Bearer k"
    finally:
        await client.close()
        await server.close()

"""The Responses API of a real model, through OpenAI's client."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from tests.e2e.server import serving

pytestmark = [pytest.mark.model]


class Place(BaseModel):
    """Its texts cannot be long, whatever the model likes to say."""

    kind: Literal["town", "village"]
    by_the_sea: bool


BAD: Any = {"type": "json_schema", "name": "bad", "schema": {"type": "object", "properties": {"a": "text"}}}


def test_whole_streamed_parsed_and_refused(smollm2_path: Path, tmp_path: Path) -> None:
    with serving(smollm2_path, tmp_path / "log", "--max-model-len", "512") as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0)
        asked: dict[str, Any] = {
            "model": "m",
            "input": "Name a town at the sea.",
            "temperature": 0,
            "max_output_tokens": 40,
        }
        whole = client.responses.create(**asked)
        chat = client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": asked["input"]}], temperature=0, max_tokens=40
        )
        with client.responses.stream(**asked) as stream:
            deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        parsed = client.responses.parse(**{**asked, "max_output_tokens": 200}, text_format=Place)
        with pytest.raises(openai.BadRequestError) as refused:
            client.responses.create(**asked, text={"format": BAD})
        again = client.responses.create(**asked)
    assert whole.output_text == chat.choices[0].message.content == "".join(deltas) == again.output_text
    assert whole.usage is not None
    assert chat.usage is not None
    assert whole.usage.input_tokens == chat.usage.prompt_tokens
    assert isinstance(parsed.output_parsed, Place)
    assert refused.value.param == "text.format.schema"

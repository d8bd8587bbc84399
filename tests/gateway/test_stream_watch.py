"""Reading streams along: what an error is in each form, and how one is said."""

from __future__ import annotations

import json

import pytest

from tidemill.core.errors import Unavailable
from tidemill.gateway.proxy.stream_watch import Form, StreamWatch, error_ending

BEGUN = {
    "openai": {"choices": [{"index": 0, "delta": {"content": "a"}}]},
    "responses": {"type": "response.output_text.delta", "delta": "a"},
    "anthropic": {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}},
}


@pytest.mark.parametrize("form", ["openai", "responses", "anthropic"])
@pytest.mark.parametrize(
    "own",
    [{"error": {"message": "no"}}, {"type": "error", "error": {"message": "no"}}, {"object": "error", "message": "no"}],
    ids=["openai", "anthropic", "vllm"],
)
def test_an_error_is_one_in_any_form_and_does_not_pass(form: Form, own: dict[str, object]) -> None:
    watch = StreamWatch(form)
    begun, error = (f"data: {json.dumps(one)}\n\n".encode() for one in (BEGUN[form], own))
    assert watch.feed(begun + error + b"data: [DONE]\n\n") == begun
    assert watch.visible
    assert watch.error is not None
    assert watch.failure == error + b"data: [DONE]\n\n"


def test_each_form_has_its_error_event() -> None:
    error = Unavailable("it broke")

    def read(form: Form) -> list[dict[str, object]]:
        lines = error_ending(error, form).decode().splitlines()
        return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]

    assert [one["error"]["message"] for one in read("openai")] == ["it broke"]  # type: ignore[index]
    assert [(one["type"], one["message"]) for one in read("responses")] == [("error", "it broke")]
    assert [one["type"] for one in read("anthropic")] == ["error"]
    assert error_ending(error, "openai").endswith(b"data: [DONE]\n\n")

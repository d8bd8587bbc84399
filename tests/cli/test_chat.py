"""A conversation in the terminal, with answers made up by the test."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.scripted import VOCAB, make_loop
from tests.support.toy_text import ToyText
from tidemill import LLM
from tidemill.cli.chat import Conversation, converse
from tidemill.cli.main import run
from tidemill.core.errors import TemplateRejected
from tidemill.llm import Piece

Messages = list[dict[str, str]]


def echo(messages: Messages) -> Iterator[Piece]:
    """Answers with the number of messages and the last of them, in pieces."""
    yield Piece(index=0, text=f"{len(messages)}:")
    yield Piece(index=0, text=messages[-1]["content"], finish_reason="stop")


def talk(*lines: str, conversation: Conversation | None = None, answer: object = echo) -> str:
    out = io.StringIO()
    converse(conversation or Conversation(), answer, lines=lines, out=out)  # type: ignore[arg-type]
    return out.getvalue()


def test_each_line_is_answered_with_everything_before_it_in_mind() -> None:
    conversation = Conversation("be brief")
    assert talk("hi", "", "ho", conversation=conversation) == "2:hi\n4:ho\n"
    roles = [message["role"] for message in conversation.messages]
    assert roles == ["system", "user", "assistant", "user", "assistant"]
    assert conversation.messages[2]["content"] == "2:hi"


def test_reset_keeps_the_system_message_only() -> None:
    conversation = Conversation("be brief")
    assert talk("hi", "/reset", "ho", conversation=conversation) == "2:hi\n(the conversation starts anew)\n2:ho\n"


def test_a_command_that_does_not_exist_is_not_sent_to_the_model() -> None:
    conversation = Conversation()
    shown = talk("/help", "/etc/hosts is a file", conversation=conversation)
    assert shown.startswith("(there is no /help: /reset forgets the conversation, /exit (or Ctrl-D) ends it")
    assert shown.endswith("1:/etc/hosts is a file\n")


def test_exit_ends_it() -> None:
    assert talk("hi", "/exit", "ho") == "1:hi\n"


def test_ctrl_c_stops_the_answer_and_not_the_conversation() -> None:
    closed = []

    def interrupted(messages: Messages) -> Iterator[Piece]:
        try:
            yield Piece(index=0, text=f"{len(messages)}, and then")
            if len(messages) == 1:
                raise KeyboardInterrupt
        finally:
            closed.append(len(messages))

    conversation = Conversation()
    assert talk("hi", "ho", conversation=conversation, answer=interrupted) == "1, and then (stopped)\n3, and then\n"
    assert conversation.messages[1] == {"role": "assistant", "content": "1, and then"}
    assert closed == [1, 3]


def test_a_refused_message_is_taken_back() -> None:
    def refuse(_: Messages) -> Iterator[Piece]:
        raise TemplateRejected("no swearing")
        yield

    conversation = Conversation()
    assert talk("hi", conversation=conversation, answer=refuse) == "(no swearing)\n"
    assert conversation.messages == []


@pytest.fixture
def scripted_llm(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """Replaces LLM by one over an executor that hashes; returns the settings each was made with."""
    made: list[dict[str, object]] = []

    def make(model: str, **settings: object) -> LLM:
        made.append({"model": model} | settings)
        words = [f" w{i}" for i in range(VOCAB - ToyText().vocab_size)]
        return LLM.from_parts(make_loop(), ToyText(words))

    monkeypatch.setattr("tidemill.llm.LLM", make)
    return made


def test_piped_lines_are_answered_one_by_one(
    scripted_llm: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("hi\n/reset\nhi\n/exit\nnever read\n"))
    assert run(["chat", "m.gguf", "--max-tokens", "300", "--temperature", "0", "--max-running", "2"]) == 0
    first, second = capsys.readouterr().out.split("(the conversation starts anew)\n")
    assert first == second != "\n"
    assert scripted_llm == [{"model": "m.gguf", "max_running": 2}]


@pytest.mark.usefixtures("scripted_llm")
def test_generate_streams_what_it_gives_whole_as_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--max-tokens", "9", "--temperature", "0", "--ignore-eos", "--logit-bias", "300=5"]
    assert run(["generate", "m.gguf", "-p", "a tide", *options]) == 0
    streamed = capsys.readouterr().out
    assert run(["generate", "m.gguf", "-p", "a tide", *options, "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert streamed == whole["choices"][0]["text"] + "\n"
    assert len(whole["choices"][0]["token_ids"]) == 9
    monkeypatch.setattr("sys.stdin", io.StringIO("a tide"))
    assert run(["generate", "m.gguf", *options, "-n", "2"]) == 2  # -n is not an option: it is --n
    capsys.readouterr()
    assert run(["generate", "m.gguf", *options, "--n", "2"]) == 0
    assert capsys.readouterr().out.startswith(f"--- choice 0\n{streamed}--- choice 1\n")


@pytest.mark.usefixtures("scripted_llm")
def test_generate_with_chat_goes_through_the_template(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", "m.gguf", "-p", "hi", "--chat", "--max-tokens", "4", "--json"]) == 0
    assert bytes(json.loads(capsys.readouterr().out)["prompt_token_ids"]) == b"<user>hi\n<assistant>"


@pytest.mark.usefixtures("scripted_llm")
def test_a_model_without_a_template_is_refused_before_the_first_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ToyText, "chat_problem", "the model has no chat template")
    monkeypatch.setattr("sys.stdin", io.StringIO("hi\n"))
    assert run(["chat", "m.gguf"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == (
        "tidemill: error: the model has no chat template; give one with --chat-template, or use tidemill generate\n"
    )


@pytest.mark.parametrize("content", ["{{ messages[0]", "{% if x %}"])
def test_a_template_given_by_hand_that_cannot_be_read_stops_the_server(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tidemill.serve.server.run", lambda *_a, **_o: pytest.fail("it was served"))
    template = tmp_path / "mine.jinja"
    template.write_text(content)
    model = str(Path(__file__).parents[1] / "golden" / "data" / "plain")
    assert run(["serve", model, "--port", "0", "--chat-template", str(template)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("tidemill: error: chat_template: ")
    assert "syntax error in line 1" in error
    assert error.count("\n") == 1


@pytest.mark.usefixtures("scripted_llm")
def test_a_bad_sampling_option_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", "m.gguf", "-p", "hi", "--top-p", "2"]) == 2
    assert "top_p must be in (0, 1]" in capsys.readouterr().err
    assert run(["generate", "m.gguf", "-p", "hi", "--logit-bias", "300"]) == 2
    assert "logit_bias takes ID=VALUE" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["chat"], ["generate", "-p", "hi"]])
def test_a_model_that_embeds_is_refused_by_name(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    bert = Path(__file__).parents[1] / "golden" / "data" / "bert"
    assert run([command[0], str(bert), *command[1:], "--threads", "1"]) == 2
    assert (
        capsys.readouterr().err == "tidemill: error: the model bert gives vectors of texts (embeddings), no answers\n"
    )

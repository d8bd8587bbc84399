"""The Python API over a real engine loop, with an executor whose tokens are a hash of everything before them."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine.scripted import VOCAB, HashExecutor, make_loop
from tests.support.toy_text import ToyText
from tidemill import LLM, SamplingParams
from tidemill.core.errors import (
    ConfigError,
    ContextLengthExceeded,
    InvalidRequest,
    ModelLoadError,
    TemplateRejected,
    TidemillError,
    Unavailable,
)
from tidemill.core.step import StepPlan
from tidemill.engine.loop import EngineLoop
from tidemill.llm import Completion, Piece

PROMPTS = ["a tide", "b mill", "c", "d grinds at a steady pace"]


class Rig:
    """An LLM and the loop inside it."""

    def __init__(self, **loop: Any) -> None:
        self.loop: EngineLoop = make_loop(**loop)
        words = [f" word{i}" for i in range(VOCAB - ToyText().vocab_size)]
        self.llm = LLM.from_parts(self.loop, ToyText(words))


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.loop.check_idle()


def options(**values: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 12, "temperature": 0.0, "ignore_eos": True} | values)


def alone(prompt: Any, sampling: SamplingParams) -> Completion:
    (answer,) = Rig().llm.generate(prompt, sampling)
    return answer


def test_one_text_gives_one_answer(rig: Rig) -> None:
    (answer,) = rig.llm.generate("a tide", options())
    assert answer.prompt == "a tide"
    assert answer.prompt_token_ids == tuple(b"a tide")
    assert len(answer.token_ids) == 12
    assert answer.finish_reason == "length"
    assert answer.text == rig.llm._text.decode(answer.token_ids)
    assert answer.logprobs is None


def test_several_texts_run_together_and_come_back_in_order(rig: Rig) -> None:
    answers = rig.llm.generate(PROMPTS, options())
    assert answers == [alone(prompt, options()) for prompt in PROMPTS]
    assert rig.llm.stats().steps < 4 * 12


def test_token_ids_are_one_prompt_and_lists_of_them_several(rig: Rig) -> None:
    ids = list(b"a tide")
    (answer,) = rig.llm.generate(ids, options())
    assert answer.prompt is None
    assert answer.choices == alone("a tide", options()).choices
    mixed = rig.llm.generate([ids, "b mill"], options())
    assert [item.choices for item in mixed] == [alone(p, options()).choices for p in ("a tide", "b mill")]


def test_each_prompt_may_have_options_of_its_own(rig: Rig) -> None:
    each = [options(max_tokens=3), options(max_tokens=5, seed=7, temperature=1.0), options(n=2)]
    answers = rig.llm.generate(PROMPTS[:3], each)
    assert answers == [alone(prompt, own) for prompt, own in zip(PROMPTS, each, strict=False)]
    assert [len(answer.token_ids) for answer in answers] == [3, 5, 12]
    assert [len(answer.choices) for answer in answers] == [1, 1, 2]
    talks = [[{"role": "user", "content": content}] for content in ("hi", "ho")]
    replies = rig.llm.chat(talks, each[:2])
    assert [len(reply.token_ids) for reply in replies] == [3, 5]
    assert rig.llm.generate("a tide", [options()]) == [alone("a tide", options())]


@pytest.mark.parametrize(
    ("sampling", "says", "param"),
    [
        ([options()], "sampling has 1 entries for 2 prompts", "sampling"),
        ([], "sampling has 0 entries for 2 prompts", "sampling"),
        ([options(), None], "sampling[1] must be SamplingParams, not None", "sampling[1]"),
        ({"max_tokens": 5}, "sampling must be SamplingParams or a list of them, not {'max_tokens': 5}", "sampling"),
        (
            [options(), options(temperature=-1.0)],
            "sampling[1]: temperature must be in [0, 100], not -1.0",
            "sampling[1]",
        ),
        (options(temperature=-1.0), "temperature must be in [0, 100], not -1.0", "temperature"),
    ],
)
def test_options_that_do_not_go_with_the_prompts_are_refused(rig: Rig, sampling: Any, says: str, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        rig.llm.generate(["a", "b"], sampling)
    assert (caught.value.message, caught.value.param) == (says, param)
    assert rig.llm.stats().steps == 0


@pytest.mark.parametrize(
    ("prompts", "says"),
    [
        (None, "a prompt is text or a list of token ids, not None"),
        (5, "a prompt is text or a list of token ids, not 5"),
        ({"a": 1}, "a prompt is text or a list of token ids, not {'a': 1}"),
        (["a", None], "prompt[1]: a prompt is text or a list of token ids, not None"),
        ([1.5], "token 1.5 at position 0 of the prompt is not an id between"),
        ([1, "a"], "token 'a' at position 1 of the prompt is not an id between"),
        ([[1], []], "prompt[1]: the prompt is empty"),
    ],
)
def test_what_is_no_prompt_is_named(rig: Rig, prompts: Any, says: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        rig.llm.generate(prompts, options())
    assert caught.value.message.startswith(says)
    assert (caught.value.param or "").startswith("prompt")


@pytest.mark.parametrize("messages", [None, "hi", {"role": "user", "content": "hi"}, [5], [[], 5]])
def test_what_is_no_conversation_is_named(rig: Rig, messages: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        rig.llm.chat(messages, options())
    assert (caught.value.param or "").startswith("messages")


def test_a_call_goes_without_strategies_of_the_engine() -> None:
    """Of the prefix cache: its prompts are computed whole, beside those of others that are not."""
    llm = Rig(prefix_cache="on").llm
    prompt = "a tide that mills grind at " * 3
    hi = [{"role": "user", "content": prompt}]
    ways = {
        "generate": lambda strategies: llm.generate(prompt, options(), strategies=strategies)[0].text,
        "chat": lambda strategies: llm.chat(hi, options(), strategies=strategies)[0].text,
        "stream": lambda strategies: "".join(
            piece.text for piece in llm.stream(prompt, options(), strategies=strategies)
        ),
        "stream_chat": lambda strategies: "".join(
            piece.text for piece in llm.stream_chat(hi, options(), strategies=strategies)
        ),
    }
    for way, ask in ways.items():
        first = ask(None)
        cached = llm.stats().prefix_hit_tokens_total
        assert ask({"prefix-cache": "off"}) == first
        assert llm.stats().prefix_hit_tokens_total == cached, way
        assert ask({"prefix-cache": "on"}) == first
        assert llm.stats().prefix_hit_tokens_total > cached, way


@pytest.mark.parametrize(
    ("strategies", "param", "says"),
    [
        ([], "strategies", "must be an object"),
        ({"prefix_cache": "off"}, "strategies.prefix_cache", "did you mean 'prefix-cache'?"),
        ({"prefix-cache": False}, "strategies.prefix-cache", "must be 'on' or 'off', not 'False'"),
        ({"paged-kv": "off"}, "strategies.paged-kv", "setting kv_reservation"),
        ({"prefix-cache": "on"}, "strategies.prefix-cache", "is off here"),
    ],
)
def test_strategies_that_cannot_be_chosen_are_refused(strategies: Any, param: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(says)) as raised:
        Rig(prefix_cache="off").llm.generate("a tide", options(), strategies=strategies)
    assert raised.value.param == param


def test_one_stop_string_may_stand_alone(rig: Rig) -> None:
    whole = alone("a tide", options(max_tokens=200))
    stop = rig.llm._text.decode(whole.token_ids[5:7])
    assert rig.llm.generate("a tide", options(stop=stop)) == rig.llm.generate("a tide", options(stop=(stop,)))


def test_choices_differ_and_the_first_is_that_of_n_1(rig: Rig) -> None:
    (answer,) = rig.llm.generate("a tide", options(n=3, temperature=1.0, seed=5))
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.text for choice in answer.choices}) == 3
    assert answer.choices[0] == alone("a tide", options(temperature=1.0, seed=5)).choices[0]


def test_a_stop_string_ends_the_answer_before_it(rig: Rig) -> None:
    """The stop begins with the sixth token, so five tokens belong to the answer."""
    whole = alone("a tide", options(max_tokens=200))
    stop = rig.llm._text.decode(whole.token_ids[5:7])
    (answer,) = rig.llm.generate("a tide", options(max_tokens=200, stop=(stop,)))
    assert answer.text == rig.llm._text.decode(whole.token_ids[:5])
    assert answer.token_ids == whole.token_ids[:5]
    assert answer.finish_reason == "stop"
    assert rig.llm.stats().generation_tokens_total == 7


def test_a_choice_that_was_stopped_costs_no_more_steps(rig: Rig) -> None:
    """Of two choices one stops after seven tokens; the other one runs to its end."""
    sampling = options(max_tokens=100, n=2, temperature=1.0, seed=5)
    first = alone("a tide", sampling).choices[0]
    stop = rig.llm._text.decode(first.token_ids[5:7])
    (answer,) = rig.llm.generate("a tide", dataclasses.replace(sampling, stop=(stop,)))
    assert [choice.finish_reason for choice in answer.choices] == ["stop", "length"]
    assert rig.llm.stats().generation_tokens_total == 7 + 100


def test_logprobs_are_one_per_token(rig: Rig) -> None:
    (answer,) = rig.llm.generate("a tide", options(logprobs=0))
    assert answer.logprobs is not None
    assert [item.token for item in answer.logprobs] == list(answer.token_ids)


def test_answers_in_plain_types(rig: Rig) -> None:
    (answer,) = rig.llm.generate("c", options(logprobs=0, max_tokens=1))
    (token,) = answer.token_ids
    assert answer.as_dict() == {
        "prompt": "c",
        "prompt_token_ids": [ord("c")],
        "choices": [
            {
                "index": 0,
                "text": answer.text,
                "token_ids": [token],
                "finish_reason": "length",
                "logprobs": [{"token": token, "logprob": answer.logprobs[0].logprob, "top": []}],
            }
        ],
    }


def test_a_conversation_goes_through_the_template(rig: Rig) -> None:
    messages = [{"role": "user", "content": "hi"}]
    (answer,) = rig.llm.chat(messages, options())
    assert bytes(answer.prompt_token_ids) == b"<user>hi\n<assistant>"
    (other,) = rig.llm.chat(messages, options(), template_options={"suffix": "!"})
    assert bytes(other.prompt_token_ids) == b"<user>hi\n!<assistant>"
    both = rig.llm.chat([messages, [{"role": "user", "content": "ho"}]], options())
    assert both[0] == answer
    assert bytes(both[1].prompt_token_ids) == b"<user>ho\n<assistant>"


def test_what_the_template_refuses_is_refused(rig: Rig) -> None:
    with pytest.raises(TemplateRejected):
        rig.llm.chat([{"role": "assistant", "content": "hi"}])
    with pytest.raises(InvalidRequest, match="at least one message"):
        rig.llm.chat([])


def test_the_pieces_of_a_stream_make_the_whole(rig: Rig) -> None:
    pieces = list(rig.llm.stream("a tide", options(logprobs=0)))
    whole = alone("a tide", options(logprobs=0))
    assert "".join(piece.text for piece in pieces) == whole.text
    assert tuple(item for piece in pieces for item in piece.logprobs) == whole.logprobs
    assert [piece.finish_reason for piece in pieces if piece.finish_reason] == ["length"]
    chat = list(rig.llm.stream_chat([{"role": "user", "content": "hi"}], options()))
    assert "".join(piece.text for piece in chat) == alone("<user>hi\n<assistant>", options()).text


def test_a_stream_that_is_closed_ends_its_work(rig: Rig) -> None:
    stream = rig.llm.stream("a tide", options(max_tokens=200))
    next(stream)
    assert rig.loop.has_work
    stream.close()
    assert not rig.loop.has_work


def test_streams_side_by_side_do_not_take_each_others_text(rig: Rig) -> None:
    streams = [rig.llm.stream(prompt, options()) for prompt in PROMPTS[:2]]
    texts = ["", ""]
    for pieces in zip_longest(*streams):
        for place, piece in enumerate(pieces):
            texts[place] += piece.text if piece else ""
    assert texts == [alone(prompt, options()).text for prompt in PROMPTS[:2]]


def test_threads_share_the_engine(rig: Rig) -> None:
    answers: dict[str, Completion] = {}

    def ask(prompt: str) -> None:
        (answers[prompt],) = rig.llm.generate(prompt, options())

    threads = [threading.Thread(target=ask, args=(prompt,)) for prompt in PROMPTS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {prompt: alone(prompt, options()) for prompt in PROMPTS}


def test_more_prompts_than_the_queue_holds_wait_their_turn() -> None:
    rig = Rig(max_running=1, max_waiting=1)
    assert rig.llm.generate(PROMPTS, options()) == [alone(prompt, options()) for prompt in PROMPTS]
    rig.loop.check_idle()


def test_a_prompt_that_cannot_be_served_is_named_and_none_is_run(rig: Rig) -> None:
    with pytest.raises(ContextLengthExceeded, match=r"^prompt\[1\]: ") as caught:
        rig.llm.generate(["fits", "x" * 5000], options())
    assert caught.value.param == "prompt[1]"
    with pytest.raises(InvalidRequest, match="temperature"):
        rig.llm.generate("fits", options(temperature=-1.0))
    with pytest.raises(InvalidRequest, match="prompt is empty"):
        rig.llm.generate([[]], options())
    assert rig.llm.generate([], options()) == rig.llm.generate(()) == []
    with pytest.raises(InvalidRequest, match="not an id"):
        rig.llm.generate([[VOCAB]], options())
    assert rig.llm.stats().steps == 0


def test_a_failed_step_is_an_error_and_the_next_call_works() -> None:
    def fail_once(plan: StepPlan) -> None:
        if plan.step == 0:
            raise OSError("broken once")

    rig = Rig(executor=HashExecutor(fail_once))
    with pytest.raises(TidemillError, match="broken once"):
        rig.llm.generate(PROMPTS, options())
    rig.loop.check_idle()
    assert rig.llm.generate("a tide", options()) == [alone("a tide", options())]


def test_ctrl_c_in_a_step_waits_until_the_step_is_whole() -> None:
    signals = [signal.SIGINT]

    def interrupt_once(_: StepPlan) -> None:
        if signals:
            os.kill(os.getpid(), signals.pop())

    rig = Rig(executor=HashExecutor(interrupt_once))
    with pytest.raises(KeyboardInterrupt):
        rig.llm.generate("a tide", options())
    assert rig.llm.stats().steps == 1
    rig.loop.check_idle()
    assert rig.llm.generate("a tide", options()) == [alone("a tide", options())]


def test_closed_means_closed() -> None:
    with Rig().llm as llm:
        stream = llm.stream("a tide", options())
        next(stream)
    with pytest.raises(Unavailable):
        next(stream)
    with pytest.raises(Unavailable):
        llm.generate("a tide")
    llm.close()


def test_settings_are_looked_up_before_anything_is_loaded() -> None:
    with pytest.raises(ConfigError, match=r"no setting max_runing; did you mean max_running\?"):
        LLM("nowhere.gguf", max_runing=8)
    with pytest.raises(ModelLoadError, match=r"nowhere\.gguf"):
        LLM("nowhere.gguf", max_running=8)
    with pytest.raises(ModelLoadError, match=r"nowhere\.gguf"):
        LLM(Path("nowhere.gguf"))


def test_importing_the_package_alone_is_light() -> None:
    code = "import sys, tidemill; print(*sorted({'numpy', 'tokenizers', 'tidemill.llm'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.model
def test_the_real_model_answers(smollm2_path: Path) -> None:
    sampling = SamplingParams(temperature=0.0, max_tokens=24)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    with LLM(str(smollm2_path), max_model_len=512, max_running=4, numerics="exact") as llm:
        (answer,) = llm.chat(question, sampling)
        streamed: list[Piece] = list(llm.stream_chat(question, sampling))
    assert "Paris" in answer.text
    assert "".join(piece.text for piece in streamed) == answer.text


GOLDEN = Path(__file__).parent / "golden" / "data"


def test_embed_gives_a_row_for_each_text() -> None:
    expected = np.load(GOLDEN / "bert" / "expected.npz")
    texts = [str(text) for text in expected["texts"]]
    with LLM(GOLDEN / "bert", numerics="exact", threads=1) as llm:
        rows = llm.embed(texts)
        assert rows.dtype == np.float32
        np.testing.assert_allclose(rows, expected["mean_normalized"], atol=1e-5, rtol=0)
        assert np.array_equal(llm.embed(texts[1]), rows[1:2])
        assert np.array_equal(llm.embed(expected["ids2"].tolist()), rows[2:3])
        assert llm.embed(texts * 400).shape == (1600, 32)  # more than the queue holds
        long = "tide " * 200
        with pytest.raises(ContextLengthExceeded, match="max_model_len is 96"):
            llm.embed(long)
        ids = [1 + i % 60 for i in range(200)]
        assert np.array_equal(llm.embed(ids, truncate=-1), llm.embed(ids[:96]))
        assert np.array_equal(llm.embed([long], truncate=-1), llm.embed("tide " * 94))
        for texts_, options_, reason in (
            ("", {}, "the text is empty"),
            (["a", ""], {}, r"text\[1\]: the text is empty"),
            (["a", 5], {}, "a text is text or a list of token ids, not 5"),
            ([[1, 999]], {}, "token 999 at position 1"),
            ("a", {"dimensions": 16}, "may be shortened"),
            ("a", {"truncate": 0}, "truncate must be at least 1"),
        ):
            with pytest.raises(InvalidRequest, match=reason):
                llm.embed(texts_, **options_)
        with pytest.raises(InvalidRequest, match="gives vectors"):
            llm.generate("a")
        assert llm.stats().kv_blocks_held == 0
    with LLM(GOLDEN / "bert", matryoshka=True, threads=1) as llm:
        short = llm.embed(texts, dimensions=16)
        assert short.shape == (4, 16)
        np.testing.assert_allclose(np.linalg.norm(short, axis=1), 1.0, atol=1e-6)
    with LLM(GOLDEN / "qwen3", threads=1) as llm, pytest.raises(InvalidRequest, match="gives answers, no vectors"):
        llm.embed("a")


def test_prompts_of_one_call_may_have_adapters(tmp_path: Path) -> None:
    data = Path(__file__).parent / "golden" / "data"
    settings = {"executor": "reference", "max_running": 4, "packed_cache": "off"}
    with LLM(data / "grouped_tied", lora=(f"one={data / 'lora_attention'}",), max_loras=2, **settings) as llm:
        assert llm.adapters == ("one",)
        plain, one = (llm.generate("The tide", options(), lora=name)[0].text for name in (None, "one"))
        llm.load_adapter("two", data / "lora_all")
        answers = llm.generate(["The tide"] * 3, options(), lora=["two", None, "one"])
        assert [answer.text for answer in answers[1:]] == [plain, one]
        assert len({plain, one, answers[0].text}) == 3
        assert "".join(piece.text for piece in llm.stream("The tide", options(), lora="one")) == one
        llm.unload_adapter("two")
        for lora, said in (
            ("two", "there is no adapter 'two'; loaded: one"),
            (["one"] * 2, "a list of 1 of them"),
            (3, "3"),
        ):
            with pytest.raises(InvalidRequest, match=said):
                llm.generate("The tide", options(), lora=lora)
        with pytest.raises(ModelLoadError, match="there is no such folder"):
            llm.load_adapter("three", tmp_path / "nowhere")
        with pytest.raises(InvalidRequest, match="there is a model 'one' already"):
            llm.load_adapter("one", data / "lora_all")


def test_an_llm_without_adapters_takes_none(rig: Rig) -> None:
    with pytest.raises(InvalidRequest, match="adapters are off: set max_loras"):
        rig.llm.load_adapter("x", "y")
    with pytest.raises(InvalidRequest, match="there is no adapter 'x'; loaded: none"):
        rig.llm.generate("a", options(), lora="x")

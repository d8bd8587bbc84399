"""The check before the queue: limits, counts and the setting to change are in the message."""

from __future__ import annotations

import pytest

from tidemill.core.errors import ContextLengthExceeded, InvalidRequest
from tidemill.core.sampling import SamplingOptions
from tidemill.core.tokens import EngineInfo
from tidemill.engine.admission import check, check_tokens


def info(max_model_len: int = 2048, kv: int = 100_000) -> EngineInfo:
    return EngineInfo(model="m", vocab_size=100, max_model_len=max_model_len, kv_capacity_tokens=kv, end_token_ids=(2,))


def ask(max_tokens: int | None = None) -> SamplingOptions:
    return SamplingOptions(max_tokens=max_tokens)


def test_2047_and_one_more_fit_2048() -> None:
    assert check(2047, ask(1), info()) == 1
    assert check(2047, ask(), info()) == 1
    assert check(1900, ask(148), info()) == 148
    assert check(1, ask(), info()) == 2047


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "message", "param"),
    [
        (2048, 1, "2048 tokens; the prompt has 2048 tokens and max_tokens asks for 1 output tokens, 2049", "prompt"),
        (2049, 1, "the prompt has 2049 tokens and max_tokens asks for 1 output tokens, 2050 in all", "prompt"),
        (20_000, 1, "the prompt has 20000 tokens", "prompt"),
        (1900, 500, "the prompt has 1900 tokens and max_tokens asks for 500 output tokens, 2400 in all", "max_tokens"),
        (2048, None, "the prompt has 2048 tokens and leaves no room for output", "prompt"),
    ],
)
def test_what_does_not_fit_the_model_names_limit_prompt_and_output(
    prompt: int, max_tokens: int | None, message: str, param: str
) -> None:
    with pytest.raises(ContextLengthExceeded) as caught:
        check(prompt, ask(max_tokens), info())
    assert caught.value.message.startswith("max_model_len is 2048 tokens; ")
    assert message in caught.value.message
    assert caught.value.param == param
    assert (caught.value.status, caught.value.code) == (400, "context_length_exceeded")


def test_the_pools_capacity_is_named_where_it_is_the_tighter_limit() -> None:
    small = info(max_model_len=4096, kv=128)
    with pytest.raises(ContextLengthExceeded, match=r"the KV pool capacity is 128 tokens \(setting kv_memory\)"):
        check(129, ask(), small)
    with pytest.raises(ContextLengthExceeded, match=r"capacity is 128 .* 100 tokens .* 200 output tokens, 300 in all"):
        check(100, ask(200), small)
    # The last output token is drawn and never computed, so it needs no place in the pool.
    assert check(128, ask(1), small) == 1
    assert check(100, ask(29), small) == 29
    assert check(100, ask(), small) == 29
    with pytest.raises(ContextLengthExceeded):
        check(100, ask(30), small)


def test_a_length_that_the_pool_has_set_names_the_pool() -> None:
    """What the planner makes of a small pool: the model's length is cut to the pool's."""
    cut = info(max_model_len=128, kv=128)
    with pytest.raises(ContextLengthExceeded) as caught:
        check(129, ask(1), cut)
    assert caught.value.message == (
        "max_model_len is 128 tokens, all that the KV pool holds (setting kv_memory); "
        "the prompt has 129 tokens and max_tokens asks for 1 output tokens, 130 in all"
    )
    with pytest.raises(ContextLengthExceeded, match="max_model_len is 128 tokens; the prompt"):
        check(129, ask(1), info(max_model_len=128, kv=144))


def test_an_empty_prompt_is_named() -> None:
    with pytest.raises(InvalidRequest, match="the prompt is empty") as caught:
        check(0, ask(), info())
    assert caught.value.param == "prompt"


@pytest.mark.parametrize("token", [-1, 100, 2**40, 1.0, True, "1", None])
def test_what_is_no_token_id_is_named_with_its_place(token: object) -> None:
    with pytest.raises(InvalidRequest, match="at position 2 of the prompt is not an id between 0 and 99"):
        check_tokens([0, 99, token], 100)  # type: ignore[list-item]
    check_tokens([0, 99], 100)

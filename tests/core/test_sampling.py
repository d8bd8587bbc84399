"""Options of the draw: what can be honoured is taken, everything else is one line that names the option."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tidemill.core.errors import InvalidRequest
from tidemill.core.sampling import MAX_STOP_CHARACTERS, SamplingOptions


def test_the_defaults_are_valid() -> None:
    assert SamplingOptions().validated(100) == SamplingOptions()


def test_one_text_is_one_stop_string_and_not_its_letters() -> None:
    assert SamplingOptions(stop="END").stop == ("END",)  # type: ignore[arg-type]
    assert SamplingOptions(stop=("END", "STOP")).validated(100).stop == ("END", "STOP")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("temperature", math.nan, "temperature must be a finite number, not nan"),
        ("temperature", "1", "temperature must be a finite number, not '1'"),
        ("temperature", -0.1, "temperature must be in [0, 100], not -0.1"),
        ("top_p", 0.0, "top_p must be in (0, 1], not 0.0"),
        ("top_k", 1.5, "top_k must be an integer, not 1.5"),
        ("n", True, "n must be an integer, not True"),
        ("logprobs", 21, "logprobs must be between 0 and 20, not 21"),
        ("ignore_eos", "yes", "ignore_eos must be true or false, not 'yes'"),
        ("logit_bias", None, "logit_bias must be a table of token ids and numbers, not None"),
        ("logit_bias", [1], "logit_bias must be a table of token ids and numbers, not [1]"),
        ("logit_bias", {100: 1.0}, "a token id of logit_bias must be between 0 and 99, not 100"),
        ("logit_bias", {"5": 1.0}, "a token id of logit_bias must be an integer, not '5'"),
        ("logit_bias", {5: 101.0}, "logit_bias of token 5 must be in [-100, 100], not 101.0"),
        ("logit_bias", dict.fromkeys(range(1025), 1.0), "logit_bias has 1025 entries; at most 1024"),
        ("stop", None, "stop must be a list, not None"),
        ("stop", 5, "stop must be a list, not 5"),
        ("stop", "", "stop strings must be non-empty text"),
        ("stop", ("a", 5), "stop strings must be non-empty text"),
        ("stop", ("a",) * 65, "stop has 65 strings; at most 64"),
        ("stop_token_ids", None, "stop_token_ids must be a list, not None"),
        ("stop_token_ids", (100,), "a token id of stop_token_ids must be between 0 and 99, not 100"),
    ],
)
def test_what_cannot_be_honoured_is_named(name: str, value: Any, says: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        SamplingOptions(**{name: value}).validated(100)
    assert (caught.value.message, caught.value.param) == (says, name)


def test_stop_strings_have_a_size_altogether() -> None:
    half = "x" * (MAX_STOP_CHARACTERS // 2)
    SamplingOptions(stop=(half, half)).validated(100)
    with pytest.raises(InvalidRequest, match="stop has 16385 characters; at most 16384") as refused:
        SamplingOptions(stop=(half, half, "y")).validated(100)
    assert refused.value.param == "stop"

"""Bad words in tokens: as they stand within text, whatever the tokenizer puts around a whole one."""

from __future__ import annotations

import pytest

from tests.support.toy_text import ToyText
from tidemill.frontend.bad_words import banned_sequences


@pytest.mark.parametrize("around", [{}, {"add_bos": True}, {"add_end": True}, {"add_bos": True, "add_end": True}])
def test_what_belongs_around_a_text_is_left_out_and_no_sequence_comes_twice(around: dict[str, bool]) -> None:
    text = ToyText(**around)
    assert banned_sequences(["no", " no", "yes"], text) == ((*b"no",), (*b" no",), (*b"yes",), (*b" yes",))
    assert banned_sequences([], text) == ()

"""Nasty text through real vocabularies: ids are those of the libraries that the models' authors use."""

from __future__ import annotations

import random
import unicodedata
from functools import cache

import pytest

from tests.support.packaged_vocabularies import FAMILIES, Family
from tests.text.tiny_text import golden
from tidemill.text.detokenizer import IncrementalDetokenizer

pytestmark = [pytest.mark.slow]
TEXTS = [
    *golden("rules.json")["texts"],
    "Donaudampfschifffahrt" * 300,
    "你好世界" * 500,
    "👩‍👩‍👧‍👦" * 50,
    "e\u0301\u0302\u0303" * 40,
    "\x00" * 30 + "a\x00b",
    "0" * 1001,
    "-" * 777,
    "=" * 128 + "\n" + "#" * 65,
    "\n" * 50 + "\t" * 50,
    "a" * 3000 + " " + "b" * 3,
    "ﷺ ﬁ ﬀ № ㎏ ① ２ ｱ",
    "<s> </s> [INST] <unk> <0x0A> <|endoftext|> <|im_start|> <pad>",
]


@cache
def family(name: str) -> Family:
    return FAMILIES[name]()


@pytest.fixture(params=FAMILIES)
def known(request: pytest.FixtureRequest) -> Family:
    return family(request.param)


def drawn(count: int) -> list[str]:
    chosen = random.Random(58)
    letters = [*"aeinorst,. \n", "  ", "é", "ß", "中", "日", "ह", "ि", "א", "ع", "한", "😀", "\u200d", "1", "٣", "'s"]
    planes = [chr(chosen.randrange(0x20, 0xD800)) for _ in range(300)]
    planes += [chr(chosen.randrange(0x10000, 0x20000)) for _ in range(60)]
    return ["".join(chosen.choices([*letters * 8, *planes], k=chosen.randint(1, 60))) for _ in range(count)]


def test_plain_ids(known: Family) -> None:
    for text in [*TEXTS, *drawn(400)]:
        assert known.tokenizer.encode(text, add_bos=False) == known.plain(text), text


def test_markup_ids(known: Family) -> None:
    for text in [*TEXTS[:60], *drawn(60)]:
        for marked in (known.specials[0] + text + known.specials[-1], text.join(known.specials) + "\n" + text):
            assert known.tokenizer.encode_markup(marked) == known.markup(marked), marked


def test_text_comes_back_whole_and_piece_by_piece(known: Family) -> None:
    for text in [*TEXTS, *drawn(100)]:
        ids = known.tokenizer.encode(text, add_bos=False)
        whole = known.tokenizer.decode(ids)
        assert whole == (unicodedata.normalize(known.composes, text) if known.composes else text)
        pieces = IncrementalDetokenizer(known.tokenizer)
        assert "".join([*(pieces.push([token]) for token in ids), pieces.flush()]) == whole

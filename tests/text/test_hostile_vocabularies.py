"""Whatever a file's vocabulary holds: it is refused in one line, or it encodes and decodes any text."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.core.errors import ModelLoadError
from tidemill.text.chat import build_chat_encoder
from tidemill.text.source import GgufVocabulary, TextSource
from tidemill.text.tokenizer import Tokenizer, build_tokenizer

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
NAMES = st.one_of(
    st.text("ab▁ <>", max_size=4), st.sampled_from([*BYTES[:3], "[UNK]", "[CLS]", "##a", "▁▁", "<s>", "Ġ"])
)
IDS = st.one_of(st.none(), st.integers(-1, 9))


@st.composite
def vocabularies(draw: st.DrawFn) -> GgufVocabulary:
    tokens = draw(st.lists(NAMES, min_size=1, max_size=8)) + (BYTES if draw(st.booleans()) else [])
    kinds = draw(st.lists(st.integers(-1, 7), min_size=len(tokens), max_size=len(tokens))) if len(tokens) < 9 else []
    scores = st.floats(width=32)
    return GgufVocabulary(
        model=draw(st.sampled_from(["llama", "bert", "gpt2", ""])),
        pre="default",
        tokens=tokens,
        token_types=kinds,
        merges=draw(st.lists(st.sampled_from(["a b", "a a", "b", ""]), max_size=2)),
        scores=[draw(scores) for _ in tokens[:8]] + [0.0] * len(tokens[8:]),
        bos_id=draw(IDS),
        eos_id=draw(IDS),
        unk_id=draw(IDS),
        sep_id=draw(IDS),
        add_bos=draw(st.sampled_from([None, True, False])),
        add_eos=draw(st.booleans()),
        add_space_prefix=draw(st.sampled_from([None, True, False])),
    )


def build(source: TextSource) -> tuple[Tokenizer | None, str]:
    try:
        return build_tokenizer(source), ""
    except ModelLoadError as refused:
        return None, refused.message


@given(vocabularies(), st.text("ab▁ <>[]sUNK\n😀", max_size=12))
@settings(max_examples=600, deadline=None)
def test_refused_in_one_line_or_of_use(vocabulary: GgufVocabulary, text: str) -> None:
    source = TextSource(gguf=vocabulary, chat_templates={"default": "{{ messages[0].content }}"}, where="file")
    tokenizer, refusal = build(source)
    if tokenizer is None:
        assert refusal.startswith("file: ")
        assert "\n" not in refusal
        return
    ids = tokenizer.encode(text) + build_chat_encoder(source, tokenizer).encode([{"role": "user", "content": text}])
    assert all(0 <= token < tokenizer.vocab_size for token in ids)
    assert isinstance(tokenizer.decode(ids), str)

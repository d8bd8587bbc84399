"""all-MiniLM-L6-v2 against transformers (with sentence-transformers' mean and norm), where its package is installed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tidemill import LLM
from tidemill.core.errors import ContextLengthExceeded

EXPECTED = Path(__file__).parent / "data" / "minilm.npz"
pytestmark = [pytest.mark.model]


def distances(found: npt.NDArray[np.float32], expected: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """1 - cosine of each pair."""
    a, b = found.astype(np.float64), expected.astype(np.float64)
    products: npt.NDArray[np.float64] = (a * b).sum(axis=1)
    return 1 - products / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


@pytest.mark.parametrize(("numerics", "limit"), [("exact", 1e-9), ("fast", 1e-6)])
def test_vectors_are_those_of_transformers(minilm_folder: Path, numerics: str, limit: float) -> None:
    """Measured: 4e-13 from the cosine 1 with exact numerics, 3e-8 with fast ones (KV in float16)."""
    expected = np.load(EXPECTED)
    with LLM(minilm_folder, numerics=numerics, threads=2, max_model_len=512) as llm:
        found = llm.embed([str(text) for text in expected["texts"]])
        assert distances(found, expected["vectors"]).max() < limit
        by_ids = llm.embed([expected[f"ids{index}"].tolist() for index in range(len(found))])
        assert np.array_equal(found, by_ids)
        assert np.array_equal(found[3:4], llm.embed(str(expected["texts"][3])))


def test_long_texts_are_refused_or_cut_as_sentence_transformers_cuts_them(minilm_folder: Path) -> None:
    expected = np.load(EXPECTED)
    text = str(expected["texts"][-1])
    with LLM(minilm_folder, threads=2) as llm:
        with pytest.raises(ContextLengthExceeded, match="max_model_len is 256"):
            llm.embed(text)
        cut = llm.embed(text, truncate=-1)
    assert distances(cut, expected["cut"][None]).max() < 1e-6
    assert distances(expected["vectors"][-1:], expected["cut"][None]).min() > 1e-3


def test_the_limit_would_see_another_text(minilm_folder: Path) -> None:
    expected = np.load(EXPECTED)
    with LLM(minilm_folder, threads=2, max_model_len=512) as llm:
        near = llm.embed([f"{text}." for text in expected["texts"]])
    assert distances(near, expected["vectors"]).min() > 1e-6

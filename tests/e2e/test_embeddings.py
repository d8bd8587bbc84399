"""`tidemill serve` of an embedding model, through the real client and the command it prints."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import numpy as np
import openai
import pytest

from tests.e2e.server import serving

GOLDEN = Path(__file__).parents[1] / "golden" / "data" / "bert"


def test_the_openai_client_gets_the_vectors_of_transformers(tmp_path: Path) -> None:
    expected = np.load(GOLDEN / "expected.npz")
    texts, vectors = [str(text) for text in expected["texts"]], expected["mean_normalized"]
    with serving(GOLDEN, tmp_path / "log", "--numerics", "exact", "--threads", "1") as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
        # Without a format the client asks for base64, and decodes it.
        for answer in (
            client.embeddings.create(model="m", input=texts),
            client.embeddings.create(model="m", input=texts, encoding_format="float"),
            client.embeddings.create(model="m", input=[expected[f"ids{index}"].tolist() for index in range(4)]),
        ):
            found = np.array([item.embedding for item in answer.data])
            np.testing.assert_allclose(found, vectors, atol=1e-5, rtol=0)
            assert answer.usage.prompt_tokens == sum(len(expected[f"ids{index}"]) for index in range(4))
        one = client.embeddings.create(model="m", input=texts[0])
        np.testing.assert_allclose(one.data[0].embedding, vectors[0], atol=1e-5, rtol=0)
        with pytest.raises(openai.BadRequestError, match="may be shortened"):
            client.embeddings.create(model="m", input="a", dimensions=8)
        with pytest.raises(openai.BadRequestError, match="gives vectors of texts"):
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi"}])
        with pytest.raises(openai.BadRequestError, match="max_model_len is 96"):
            client.embeddings.create(model="m", input="tide " * 100)
        cut = client.embeddings.create(model="m", input="tide " * 100, extra_body={"truncate_prompt_tokens": -1})
        assert cut.usage.prompt_tokens == 96
        log = server.log.read_text()
        assert "chats and completions are refused" in log
        command = log[log.index("curl") :].splitlines()[0]
        if shutil.which("curl"):
            shown = subprocess.run(shlex.split(command), capture_output=True, text=True, timeout=20, check=True)
            assert '"object":"embedding"' in shown.stdout
        server.wait_until("idle")
        assert server.metric("tidemill_engine_kv_blocks_held") == 0
        assert server.metric("tidemill_embeddings_total") >= 14

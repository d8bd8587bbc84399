"""lm-evaluation-harness on tasks that lie beside this file: no hub is asked for anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import MODEL, Tour

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(find_spec("lm_eval") is None, reason="`make test-clients` installs lm-evaluation-harness"),
]
TASKS = Path(__file__).parent / "lm_eval"
CHOICES: list[list[dict[str, Any]]] = json.loads((MODEL / "expected.json").read_text())["choices"]
TOLERANCE = 2e-3
"""Of a sum of up to 40 log-probabilities, in nats: both sides compute in float32, in another order."""


@pytest.fixture(autouse=True)
def offline(tour: Tour, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key where the harness looks for it, and no hub; tasks name their data beside them."""
    hub = {"HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hub")}
    for name, value in {**hub, "OPENAI_API_KEY": tour.key}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(TASKS)


@pytest.mark.parametrize(
    ("batch", "more"), [(1, ""), (1, ",tokenized_requests=False"), (4, ",num_concurrent=2")], ids=str
)
def test_loglikelihoods_are_those_of_transformers(tour: Tour, batch: int, more: str) -> None:
    """Prompts as token ids, as texts, and several in one request; the harness takes long to load, so here."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    done = simple_evaluate(
        model="local-completions",
        model_args=f"model=m,base_url={tour.url}/completions,tokenizer={MODEL},tokenizer_backend=huggingface{more}",
        tasks=["tides"],
        batch_size=batch,
        task_manager=TaskManager(include_path=str(TASKS)),
    )
    samples = sorted(done["samples"]["tides"], key=lambda sample: sample["doc_id"])
    assert len(samples) == len(CHOICES) == 8
    for sample, expected in zip(samples, CHOICES, strict=True):
        found = [answer for ((answer,),) in ([answers] for answers in sample["resps"])]
        assert [bool(greedy) for _, greedy in found] == [one["greedy"] for one in expected]
        scores = [one["loglikelihood"] for one in expected]
        assert [score for score, _ in found] == pytest.approx(scores, abs=TOLERANCE)
        assert sample["acc"] == (scores.index(max(scores)) == sample["doc"]["answer"])
    assert any(one["greedy"] for choices in CHOICES for one in choices)


def test_answers_of_chats_are_those_it_has_learnt(tour: Tour, tmp_path: Path) -> None:
    """By the command that people type."""
    told = ["--model", "local-chat-completions", "--tasks", "said", "--apply_chat_template"]
    told += ["--model_args", f"model=m,base_url={tour.url}/chat/completions"]
    told += ["--include_path", str(TASKS), "--log_samples", "--output_path", str(tmp_path)]
    command = [sys.executable, "-m", "lm_eval", "run", *told]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=dict(os.environ))
    assert done.returncode == 0, done.stdout + done.stderr
    (samples,) = (json.loads(f"[{','.join(p.read_text().splitlines())}]") for p in tmp_path.rglob("samples_*.jsonl"))
    assert len(samples) == 4
    assert all(sample["exact_match"] == 1 for sample in samples), [sample["resps"] for sample in samples]

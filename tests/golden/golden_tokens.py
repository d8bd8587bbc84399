"""Greedy tokens and log-probabilities of a transformers model, as golden values, and their comparison."""

from __future__ import annotations

from typing import Any

import torch
from transformers import GenerationConfig

STEPS = 200
TOP_STEPS = 32
TOP = 5


@torch.inference_mode()
def record_tokens(model: torch.nn.Module, prompt: list[int]) -> dict[str, Any]:
    """Greedy decoding past every end token, by transformers' own generate: the tokens, at each the gap between the two
    best log-probabilities, and at the first the best few."""
    config = GenerationConfig(
        do_sample=False,
        max_new_tokens=STEPS,
        eos_token_id=None,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    result = model.generate(torch.tensor([prompt]), generation_config=config)
    tokens = result.sequences[0, len(prompt) :].tolist()
    gaps, top = [], []
    for step, logits in enumerate(result.logits):
        best = torch.topk(torch.log_softmax(logits[0].double(), dim=-1), TOP)
        assert tokens[step] == int(best.indices[0])
        gaps.append(round(float(best.values[0] - best.values[1]), 6))
        if step < TOP_STEPS:
            top.append([[int(i), round(float(v), 6)] for i, v in zip(best.indices, best.values, strict=True)])
    return {"prompt": prompt, "tokens": tokens, "gaps": gaps, "top": top}


def compare_tokens(old: dict[str, Any], new: dict[str, Any]) -> None:
    """The same prompts, the same tokens, log-probabilities within 1e-4."""
    for before, after in zip(old["prompts"], new["prompts"], strict=True):
        assert before["prompt"] == after["prompt"]
        assert before["tokens"] == after["tokens"], (before["tokens"], after["tokens"])
        for one, other in zip(before["top"], after["top"], strict=True):
            assert all(abs(a[1] - b[1]) < 1e-4 for a, b in zip(one, other, strict=True))

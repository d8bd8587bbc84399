"""Show how sure a model is of each token: python examples/logprobs.py MODEL "The capital of France is" """

from __future__ import annotations

import math
import sys

from tidemill import LLM, SamplingParams


def main() -> None:
    """Print each greedy token's id, its probability, and the two most likely ids at its place."""
    with LLM(sys.argv[1], max_model_len=512) as llm:
        (answer,) = llm.generate(sys.argv[2], SamplingParams(temperature=0, max_tokens=12, logprobs=2))
    print(answer.text)
    for item in answer.logprobs or ():
        rivals = ", ".join(f"{token}: {math.exp(logprob):.3f}" for token, logprob in item.top)
        print(f"{item.token:>8}  {math.exp(item.logprob):.3f}  ({rivals})")


if __name__ == "__main__":
    main()

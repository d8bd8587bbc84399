"""Answer the questions of a text file, one a line, all together: python examples/batch.py MODEL < questions.txt"""

from __future__ import annotations

import sys

from tidemill import LLM, SamplingParams


def main() -> None:
    """Read questions from standard input and print each with its answer."""
    questions = [line.strip() for line in sys.stdin if line.strip()]
    conversations = [[{"role": "user", "content": question}] for question in questions]
    with LLM(sys.argv[1], max_model_len=1024, max_running=8) as llm:
        answers = llm.chat(conversations, SamplingParams(temperature=0, max_tokens=48))
    for question, answer in zip(questions, answers, strict=True):
        print(f"Q: {question}\nA: {answer.text.strip()}\n")


if __name__ == "__main__":
    main()

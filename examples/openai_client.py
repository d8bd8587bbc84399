"""Stream an answer from a running server with OpenAI's client: python examples/openai_client.py [BASE_URL]"""

from __future__ import annotations

import sys

from openai import OpenAI


def main() -> None:
    """Ask the server's first model and print the answer as it comes."""
    base_url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1"
    client = OpenAI(base_url=base_url, api_key="unused")
    model = client.models.list().data[0].id
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Why does the tide come twice a day?"}],
        max_tokens=48,
        stream=True,
    )
    for chunk in stream:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()


if __name__ == "__main__":
    main()

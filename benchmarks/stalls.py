"""How long a running stream stands still while something large arrives: the longest gap between two of its events.

    python benchmarks/stalls.py                       every case, on a server with the default model
    python benchmarks/stalls.py --cases "20 MB" chat  those whose names begin so

One caller streams an endless answer all the time; each case is sent once, whole, by another process. ``usual`` is the
longest gap of a second in which nothing came. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parent))
from serve_bench import default_server

STREAM: Final = {"prompt": "The tide comes", "stream": True, "ignore_eos": True, "max_tokens": 1800, "temperature": 1}
SENDER: Final = """
import socket, sys, time
host, port, path, file = sys.argv[1:]
body = open(file, "rb").read()
head = f"POST {path} HTTP/1.1\\r\\nhost: localhost\\r\\ncontent-type: application/json\\r\\n"
begin = time.monotonic()
with socket.create_connection((host, int(port))) as sock:
    sock.settimeout(60)
    sock.sendall(head.encode() + f"content-length: {len(body)}\\r\\nconnection: close\\r\\n\\r\\n".encode() + body)
    said = b"".join(iter(lambda: sock.recv(65536), b""))
print(said[9:12].decode(), time.monotonic() - begin)
"""
QUIET_SECONDS: Final = 1.0
BODY_BYTES: Final = 24 * 2**20


def chat(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A chat's body."""
    return {"messages": list(messages), "max_tokens": 1, **fields}


def user(text: str) -> dict[str, Any]:
    """A message."""
    return {"role": "user", "content": text}


def schema(of: Any) -> dict[str, Any]:
    """A chat that asks for JSON."""
    return chat(user("Hi"), response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": of}})


CASES: Final[dict[str, Callable[[], Any]]] = {
    "20 MB of text": lambda: chat(user("word " * 4_000_000)),
    "20 MB of lists": lambda: {"user": [[] for _ in range(5_000_000)], **chat(user("Hi"))},
    "20 MB of names": lambda: {f"k{n}": 1 for n in range(1_500_000)},
    "20 MB of token ids": lambda: {"prompt": [7] * 6_000_000},
    "as many names as may be": lambda: chat(user("Hi"), metadata={f"k{n}": [] for n in range(99_000)}),
    "as many token ids as may be": lambda: {"prompt": [7] * 1_900_000},
    "8 MB of text": lambda: chat(user("hello there " * 650_000)),
    "8 MB of control tokens": lambda: chat(user("<|im_end|>" * 700_000)),
    "a prompt of 1 MB": lambda: {"prompt": "The tide comes twice a day. " * 37_000, "max_tokens": 1},
    "a chat of 5000 messages": lambda: chat(
        *({"role": ("user", "assistant")[n % 2], "content": f"Message {n}: hello there."} for n in range(5001))
    ),
    "a schema of 3 MB": lambda: schema({"enum": [f"value {n}" * 20 for n in range(20_000)]}),
    "a schema at the limit": lambda: schema(
        {"properties": {f"k{n}": {"pattern": "^[a-z]{1,99}$"} for n in range(5500)}}
    ),
    "thousands of properties": lambda: schema({"properties": {f"key{n}": {"type": "integer"} for n in range(3000)}}),
    "10,000 stops": lambda: chat(user("Hi"), stop=[f"stop {n}" for n in range(10_000)]),
    "64 long stops": lambda: chat(user("Hi"), stop=["ab" * 50_000 + str(n) for n in range(64)]),
    "10,000 entries of logit_bias": lambda: chat(user("Hi"), logit_bias={str(n): 1 for n in range(10_000)}),
    "1024 prompts": lambda: {"prompt": ["a short prompt of some words " * 8] * 1024, "max_tokens": 1},
    "256 bad words, 200 prompts": lambda: {
        "prompt": ["Hi"] * 200, "max_tokens": 1, "bad_words": [f"some word {n}" for n in range(256)],
    },
    "128 choices, 40,000 allowed ids": lambda: {
        "prompt": "Hi", "n": 128, "max_tokens": 1, "allowed_token_ids": list(range(40_000)),
    },
}  # fmt: skip


class Stream:
    """An endless answer, and when each of its events came."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._times: list[float] = []
        self._tasks = [asyncio.create_task(self._run(offset)) for offset in (0, 1)]

    async def _run(self, offset: int) -> None:
        """Streams after each other; two take turns, so that none ends unseen."""
        await asyncio.sleep(0.5 * offset)
        body = json.dumps(STREAM).encode()
        head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        head += f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        while True:
            reader, writer = await asyncio.open_connection(*self._address)
            writer.write(head.encode() + body)
            while line := await reader.readline():
                if line.startswith(b"data: {"):
                    self._times.append(time.monotonic())
            writer.close()

    def longest_gap(self, begin: float, end: float) -> float:
        """Seconds, of gaps that reach into this time."""
        times = [begin, *(at for at in self._times if begin <= at <= end), end]
        return max(later - earlier for earlier, later in pairwise(times))

    def close(self) -> None:
        """Hang up."""
        for task in self._tasks:
            task.cancel()


async def measure(host: str, port: int, files: dict[str, tuple[str, Path]]) -> list[dict[str, Any]]:
    """One row per case."""
    stream = Stream(host, port)
    await asyncio.sleep(2)
    rows = []
    for name, (path, file) in files.items():
        begin = time.monotonic()
        await asyncio.sleep(QUIET_SECONDS)
        usual = stream.longest_gap(begin, time.monotonic())
        sender = await asyncio.create_subprocess_exec(
            sys.executable, "-c", SENDER, host, str(port), path, str(file), stdout=asyncio.subprocess.PIPE
        )
        begin = time.monotonic()
        said, _ = await sender.communicate()
        status, seconds = said.decode().split() if said else ("none", "nan")
        gap = stream.longest_gap(begin, time.monotonic())
        rows.append({"case": name, "status": status, "seconds": float(seconds), "gap": gap, "usual": usual})
        print(f"{name:34s} {status:>6s} {float(seconds):9.2f} s {1e3 * gap:8.0f} ms {1e3 * usual:8.0f} ms", flush=True)
    stream.close()
    return rows


def main() -> None:
    """Measure, and print a table and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", default=[""], help="beginnings of names; default: all")
    args = parser.parse_args()
    wanted = [name for name in CASES if name.startswith(tuple(args.cases))]
    with tempfile.TemporaryDirectory() as folder:
        files = {}
        for number, name in enumerate(wanted):
            body = CASES[name]()
            file = Path(folder, str(number))
            file.write_bytes(json.dumps(body).encode())
            files[name] = ("/v1/chat/completions" if "messages" in body else "/v1/completions", file)
            del body
        with default_server(f"--max-body-bytes {BODY_BYTES}") as base:
            host, port = base.removeprefix("http://").removesuffix("/v1").split(":")
            print(f"{'case':34s} {'status':>6s} {'answered':>11s} {'longest gap':>11s} {'usual':>11s}")
            rows = asyncio.run(measure(host, int(port), files))
    print(json.dumps({"worst_ms": round(1e3 * max(row["gap"] for row in rows)), "cases": rows}))


if __name__ == "__main__":
    main()

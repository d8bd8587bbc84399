"""A server of completions for engines that have none for token ids: one thread per connection, one for the engine.

Standard library alone, for other engines' interpreters run it. An engine is an object with ``add(ids, tokens)``, which
gives a handle, and ``step()``, which gives (handle, number of new tokens, ended) of each that went on; it is only ever
called from the engine's thread.
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

__all__ = ["Engine", "serve"]


class Engine(Protocol):
    """What is served."""

    def add(self, ids: Sequence[int], tokens: int) -> Any:
        """Queue a prompt for exactly so many tokens."""
        ...

    def step(self) -> Iterable[tuple[Any, int, bool]]:
        """Go on with what is queued, if there is something."""
        ...

    def cancel(self, handle: Any) -> None:
        """Nobody wants the rest of this one."""
        ...


@dataclass
class Job:
    """A request between its connection and the engine's thread."""

    ids: list[int]
    tokens: int
    news: queue.Queue[tuple[int, bool]] = field(default_factory=queue.Queue)
    gone: bool = False


class Loop(threading.Thread):
    """The engine's thread."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(daemon=True)
        self.jobs: queue.Queue[Job] = queue.Queue()
        self._engine = engine

    def run(self) -> None:
        under_way: dict[Any, Job] = {}
        while True:
            for job in self._taken(wait=not under_way):
                under_way[self._engine.add(job.ids, job.tokens)] = job
            for handle in [handle for handle, job in under_way.items() if job.gone]:
                self._engine.cancel(handle)
                del under_way[handle]
            for handle, new, ended in self._engine.step() if under_way else ():
                if (known := under_way.get(handle)) is None:
                    continue
                known.news.put((new, ended))
                if ended:
                    del under_way[handle]

    def _taken(self, *, wait: bool) -> Iterable[Job]:
        if wait:
            yield self.jobs.get()
        while True:
            try:
                yield self.jobs.get_nowait()
            except queue.Empty:
                return


def serve(engine: Engine, port: int) -> None:
    """Serve it on this machine's own address until the process ends."""
    loop = Loop(engine)
    loop.start()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class's name)
            """Nothing: it costs time."""

        def do_GET(self) -> None:
            self._whole({"object": "list", "data": [{"id": "peer", "object": "model"}]})

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            job = Job(ids=asked["prompt"], tokens=asked["max_tokens"])
            loop.jobs.put(job)
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            try:
                self._stream(job)
            except OSError:
                job.gone = True
                self.close_connection = True

        def _stream(self, job: Job) -> None:
            count, ended = 0, False
            while not ended:
                new, ended = job.news.get()
                count += new
                reason = "length" if ended else None
                if new or ended:
                    choice = {"index": 0, "text": "x" * new, "token_ids": [0] * new, "finish_reason": reason}
                    self._event({"choices": [choice]})
            usage = {"prompt_tokens": len(job.ids), "completion_tokens": count}
            self._event({"choices": [], "usage": usage})
            self._chunk(b"data: [DONE]\n\n")
            self._chunk(b"")

        def _event(self, payload: dict[str, Any]) -> None:
            self._chunk(b"data: " + json.dumps(payload).encode() + b"\n\n")

        def _chunk(self, data: bytes) -> None:
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.flush()

        def _whole(self, payload: dict[str, Any]) -> None:
            body = json.dumps(payload).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    class Server(ThreadingHTTPServer):
        request_queue_size = 1024
        daemon_threads = True

    Server(("127.0.0.1", port), Handler).serve_forever()

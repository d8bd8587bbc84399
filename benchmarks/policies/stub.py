"""A modelled replica as a server: the simulator's engine, whose steps take their time."""

from __future__ import annotations

import asyncio
import json
import re
from array import array
from typing import Any, Final

from tidemill.bench.load.record import RequestRecord
from tidemill.bench.load.request import LoadRequest, Prompt
from tidemill.bench.simulation.engine import SimulatedEngine

__all__ = ["Stub"]

_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
_TICK: Final = 1e-6


class Stub:
    """On a socket of 127.0.0.1. ``scale``: how many seconds a modelled second takes."""

    def __init__(self, engine: SimulatedEngine, scale: float) -> None:
        self.port = 0
        self.requests = 0
        self.in_flight_seconds = 0.0
        """Requests there, over time."""
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self._engine = engine
        self._scale = scale
        self._began = 0.0
        self._under: dict[int, tuple[RequestRecord, asyncio.StreamWriter, asyncio.Event]] = {}
        self._looked = 0.0
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen, and run steps."""
        self._began = asyncio.get_running_loop().time()
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", 0, limit=2**22)
        self.port = int(self._server.sockets[0].getsockname()[1])
        self._tasks.append(asyncio.create_task(self._steps()))

    async def stop(self) -> None:
        """End."""
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _now(self) -> float:
        """In modelled seconds."""
        return (asyncio.get_running_loop().time() - self._began) / self._scale

    def _count(self) -> None:
        now = self._now()
        self.in_flight_seconds += len(self._under) * (now - self._looked)
        self._looked = now

    async def _steps(self) -> None:
        engine = self._engine
        while True:
            if not engine.busy:
                self._wake.clear()
                await self._wake.wait()
            engine.clock.advance(max(0.0, self._now() - engine.now))
            if (idle := engine.idle_seconds) > 0:
                await asyncio.sleep(min(idle * self._scale, 0.01))
                continue
            began = engine.now
            sent = {index: len(record.arrived) for index, (record, _, _) in self._under.items()}
            ended = {record.index for record in engine.step()}
            if engine.now == began:
                engine.clock.advance(_TICK)
            await asyncio.sleep(max(0.0, (engine.now - self._now()) * self._scale))
            for index, (record, writer, over) in [*self._under.items()]:
                new = len(record.arrived) - sent.get(index, 0)
                if new:
                    _chunk(writer, _event({"choices": [{"index": 0, "text": " x" * new}]}))
                if index in ended:
                    self._end(record, writer)
                    over.set()

    def _end(self, record: RequestRecord, writer: asyncio.StreamWriter) -> None:
        self._count()
        del self._under[record.index]
        self.cached_tokens += record.cached_tokens or 0
        _chunk(writer, _event({"choices": [{"index": 0, "text": "", "finish_reason": "length"}]}))
        details = {"cached_tokens": record.cached_tokens or 0}
        usage = {"prompt_tokens": record.prompt_tokens, "completion_tokens": record.output_tokens}
        _chunk(writer, _event({"choices": [], "usage": {**usage, "prompt_tokens_details": details}}))
        _chunk(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                size = re.search(rb"(?i)content-length: *(\d+)", head)
                body = await reader.readexactly(int(size[1])) if size else b""
                if body:
                    await self._request(json.loads(body), writer)
                else:
                    _page(writer, self._metrics() if b" /metrics" in head else b'{"data": [{"id": "m"}]}')
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _request(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        ids = array("i", body["prompt"])
        index = int(body["user"])
        request = LoadRequest(index=index, prompt=Prompt(ids=ids, tokens=len(ids)), max_tokens=body["max_tokens"])
        self._count()
        engine = self._engine
        if not engine.busy:
            engine.clock.advance(max(0.0, self._now() - engine.now))
        engine.add(request, engine.now, {})
        record = engine.records[-1]
        assert not engine.refused(), "the load is made so that everything fits"
        over = asyncio.Event()
        self._under[index] = (record, writer, over)
        self.requests += 1
        self.prompt_tokens += len(ids)
        writer.write(_HEAD)
        self._wake.set()
        await over.wait()
        await writer.drain()

    def _metrics(self) -> bytes:
        engine = self._engine
        pool = engine.space.pools[0]
        used = 1.0 - pool.num_available / pool.num_blocks
        return (
            f"vllm:num_requests_running {engine.scheduler.num_running}\n"
            f"vllm:num_requests_waiting {engine.scheduler.num_waiting}\n"
            f"vllm:kv_cache_usage_perc {used}\n"
            f'vllm:cache_config_info{{block_size="{engine.space.block_size}",num_gpu_blocks="{pool.num_blocks}"}} 1\n'
        ).encode()


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps({"id": "c", "object": "text_completion", **value}).encode() + b"\n\n"


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%s\r\n" % (len(data), data))


def _page(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n%s" % (len(data), data))

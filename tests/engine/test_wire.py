"""Messages between server and engine process: what goes in comes out."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Iterator

import pytest

from tests.engine.scripted import config, make_loop, request
from tidemill.core import errors
from tidemill.core.errors import InvalidRequest, ModelLoadError, TidemillError
from tidemill.core.step import TokenLogprob
from tidemill.core.tokens import EmbedRequest, EngineStats, FinishReason, TokenDelta
from tidemill.engine.supervisor import read_frame
from tidemill.engine.wire import (
    Abort,
    Add,
    Channel,
    Embed,
    Failure,
    Inbox,
    Outbox,
    Reject,
    Start,
    Started,
    command,
    frame,
    parse_from_engine,
)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, Channel]]:
    """The server's socket and the engine's channel."""
    ours, theirs = socket.socketpair()
    channel = Channel(theirs)
    yield ours, channel
    ours.close()
    channel.close()


def test_what_is_sent_to_the_engine_arrives_in_order_and_whole(pair: tuple[socket.socket, Channel]) -> None:
    ours, channel = pair
    asked = request("a", 5, logit_bias={3: -1.5}, stop=("x",), stop_token_ids=(4,), seed=-(2**63), n=2, logprobs=0)
    start = Start(config(max_running=3))
    inbox = Inbox([Add(asked), Abort("a", 1), Abort("b")])
    data = frame(start) + frame(inbox)
    ours.sendall(data[:-1])
    assert channel.receive(1.0) == [start]
    assert channel.receive(0.01) == []
    ours.sendall(data[-1:])
    (got,) = channel.receive(1.0)
    assert got == inbox
    ours.close()
    channel.receive(0.0)
    assert not channel.open


def test_a_receive_without_a_message_waits_no_longer_than_told(pair: tuple[socket.socket, Channel]) -> None:
    _, channel = pair
    begin = time.monotonic()
    assert channel.receive(0.1) == []
    assert 0.09 < time.monotonic() - begin < 2.0
    assert channel.open


def test_sending_to_nobody_is_noticed_and_not_raised(pair: tuple[socket.socket, Channel]) -> None:
    ours, channel = pair
    ours.close()
    channel.send(Outbox([], [], EngineStats()))
    assert not channel.open


async def test_what_the_engine_sends_is_the_same_on_the_other_side(pair: tuple[socket.socket, Channel]) -> None:
    ours, channel = pair
    reader, writer = await asyncio.open_connection(sock=ours)
    loop = make_loop()
    deltas = [
        TokenDelta(
            request_id="a",
            choice=1,
            tokens=(1, 2),
            logprobs=(TokenLogprob(token=1, logprob=-0.1, top=((1, -0.1), (5, -3.25))),),
            finish_reason=FinishReason.STOP,
            stop_token=7,
            num_output_tokens=3,
        )
    ]
    outbox = Outbox(deltas, [Reject("b", Failure.of(InvalidRequest("no", param="n")))], loop.stats())
    started = Started(loop.info, loop.stats())
    channel.send(started)
    channel.send(outbox)
    channel._socket.sendall(struct.pack("<I", 100) + b"half")
    channel.close()
    bodies = [await read_frame(reader) for _ in range(3)]
    assert bodies[2] is None
    assert [parse_from_engine(body) for body in bodies[:2] if body] == [started, outbox]
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("name", [name for name in errors.__all__ if isinstance(getattr(errors, name), type)])
def test_every_error_of_the_package_crosses_as_itself(name: str) -> None:
    made = getattr(errors, name)("why", param="which")
    got = Failure.of(made).error()
    assert (type(got), got.message, got.param) == (type(made), "why", "which")


def test_a_foreign_error_crosses_with_its_type_in_the_message() -> None:
    got = Failure.of(KeyError("x")).error()
    assert (type(got), got.message) == (TidemillError, "KeyError: 'x'")
    assert type(Failure(kind="os", message="no class of ours").error()) is TidemillError
    assert isinstance(Failure.of(ModelLoadError("m")).error(), ModelLoadError)


def test_a_vector_goes_there_and_back(pair: tuple[socket.socket, Channel]) -> None:
    ours, channel = pair
    asked = EmbedRequest(request_id="e", prompt=(1, 2, 3))
    ours.sendall(frame(Inbox([command(asked), Abort("e")])))
    (inbox,) = channel.receive(1.0)
    assert isinstance(inbox, Inbox)
    embed, abort = inbox.commands
    assert isinstance(embed, Embed)
    assert (embed.request.request_id, tuple(embed.request.prompt)) == ("e", (1, 2, 3))
    assert abort == Abort("e")
    vector = bytes(range(256))
    delta = TokenDelta(request_id="e", choice=0, tokens=(), finish_reason=FinishReason.STOP, vector=vector)
    outbox = parse_from_engine(frame(Outbox([delta], [], EngineStats()))[4:])
    assert isinstance(outbox, Outbox)
    assert outbox.deltas[0].vector == vector

"""Reading a JSON body: bounded in size, content and time, refused by name when it is something else.

To build the objects of a JSON text takes the interpreter's lock from the first to the last, in whatever thread, and
everything else of the server waits. So a large text is counted first, which does not, and what would hold the lock for
longer than a fifth of a second is refused; the bounds are far above what requests of any sense have.
"""

from __future__ import annotations

import asyncio
import gc
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import msgspec
from starlette.requests import Request

from tidemill.core.errors import InvalidRequest, PayloadTooLarge, RequestTimeout, UnsupportedMediaType
from tidemill.core.field_path import field_path
from tidemill.serve.json_shape import Shape, shape_of

__all__ = ["LARGE_BODY", "MOST", "parse_object", "read_body"]

LARGE_BODY: Final = 64 * 1024
"""Bytes up to which a body is read where it is, at once."""
MOST: Final = Shape(values=2_000_000, names=200_000, containers=100_000)
"""What a body may hold."""
_NAMED_FAULTS: Final = 2**20
"""Bytes up to which a text that is no JSON is read again, to say better what is wrong with it."""

_LEAST_RATE: Final = 1024
"""Bytes per second that a body has to come with, all in all, behind the first ``stall_seconds``."""
_LINGER_SECONDS: Final = 2.0
"""How long the rest of an oversized body is taken in and dropped: closing at once could destroy the answer."""


async def read_body(request: Request, *, max_bytes: int, stall_seconds: float) -> bytes:
    """The body's bytes. Raises UnsupportedMediaType, PayloadTooLarge and RequestTimeout."""
    _check_headers(request)
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > max_bytes and "expect" in request.headers:
        raise _too_large(max_bytes)  # the caller waits for our word before it sends
    chunks: list[bytes] = []
    size = 0
    stream = request.stream()
    now = asyncio.get_running_loop().time
    begin = now()
    while True:
        left = begin + stall_seconds + size / _LEAST_RATE - now()
        try:
            async with asyncio.timeout(min(stall_seconds, left)):
                chunk = await anext(stream, None)
        except TimeoutError as error:
            if size and left < stall_seconds:
                raise RequestTimeout(f"the body comes slower than {_LEAST_RATE} bytes per second") from error
            raise RequestTimeout(f"nothing of the body came for {stall_seconds:g} s") from error
        if chunk is None:
            return b"".join(chunks)
        size += len(chunk)
        if size > max_bytes:
            await _drop(stream, 4 * max_bytes)
            raise _too_large(max_bytes)
        chunks.append(chunk)


def _check_headers(request: Request) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        said = f"not {kind[:60]!r}" if kind else "but there is none"
        raise UnsupportedMediaType(f"the Content-Type header must be application/json, {said}", param="Content-Type")
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        raise UnsupportedMediaType(f"a body in {coding[:60]!r} is not read; send it plain", param="Content-Encoding")


def _too_large(max_bytes: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"the body is larger than max_body_bytes, which is {max_bytes}")


async def _drop(stream: Any, at_most: int) -> None:
    """Take in what is on its way, within bounds of size and time."""
    dropped = 0
    try:
        async with asyncio.timeout(_LINGER_SECONDS):
            async for chunk in stream:
                dropped += len(chunk)
                if dropped > at_most:
                    return
    except TimeoutError:
        return


def parse_object(data: bytes) -> tuple[dict[str, Any], bool]:
    """(the JSON object, whether it is strict JSON). Raises InvalidRequest in one line for anything else.

    NaN and Infinity, which JSON does not have but many writers produce, come back as floats with False, and so does
    1e400, so that the field that holds one can be named. A large body is for a thread of its own: this
    takes long for it.
    """
    return _large(data) if len(data) > LARGE_BODY else _small(data)


def _large(data: bytes) -> tuple[dict[str, Any], bool]:
    shape = shape_of(data)
    for found, most, what in zip(shape, MOST, ("values", "names", "objects and lists"), strict=True):
        if found > most:
            raise PayloadTooLarge(f"the body holds {found} {what}; at most {most}")
    try:
        with _no_collection():
            value = msgspec.json.decode(data)
    except RecursionError as error:
        raise InvalidRequest("the body is nested too deeply") from error
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        if len(data) <= _NAMED_FAULTS:
            return _small(data)
        raise InvalidRequest(f"the body is not JSON: {error}") from error
    return _object(value), True


@contextmanager
def _no_collection() -> Iterator[None]:
    """Objects that are being built are no garbage: to look for some again and again takes longer than to build them."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidRequest("the body must be a JSON object")
    return value


def _small(data: bytes) -> tuple[dict[str, Any], bool]:
    strict = True

    def number(said: str) -> float:
        nonlocal strict
        value = float(said)
        strict = strict and math.isfinite(value)
        return value

    try:
        value = json.loads(data.decode("utf-8"), parse_constant=number, parse_float=number)
        if b"\\ud" in data or b"\\uD" in data:
            _refuse_surrogates(value)
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the body is not UTF-8 (at byte {error.start})") from error
    except json.JSONDecodeError as error:
        raise InvalidRequest(f"the body is not JSON: {error.msg} at character {error.pos}") from error
    except RecursionError as error:
        raise InvalidRequest("the body is nested too deeply") from error
    except ValueError as error:  # an integer of thousands of digits
        raise InvalidRequest("the body holds a number with too many digits") from error
    return _object(value), strict


def endless_number(value: Any, *place: int | str) -> str | None:
    """Where the first number is that JSON does not have, or that is too large for one; None if there is none."""
    if isinstance(value, float):
        return None if math.isfinite(value) else field_path(place)
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return next((found for key, item in items if (found := endless_number(item, *place, key)) is not None), None)


def _refuse_surrogates(value: Any, *place: int | str) -> None:
    """Half of a surrogate pair is no character: it could be neither tokenised nor sent back."""
    if isinstance(value, str):
        if any("\ud800" <= character <= "\udfff" for character in value):
            path = field_path(place) or None
            raise InvalidRequest(f"{path or 'the body'} has text with half of a surrogate pair", param=path)
    elif isinstance(value, dict):
        for key, item in value.items():
            _refuse_surrogates(key, *place)
            _refuse_surrogates(item, *place, key)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _refuse_surrogates(item, *place, index)

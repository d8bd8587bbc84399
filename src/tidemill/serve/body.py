"""Reading a JSON body: bounded in size and time, refused by name when it is something else."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any, Final

from starlette.requests import Request

from tidemill.core.errors import InvalidRequest, PayloadTooLarge, RequestTimeout, UnsupportedMediaType
from tidemill.core.field_path import field_path

__all__ = ["parse_object", "read_body"]

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
    while True:
        try:
            async with asyncio.timeout(stall_seconds):
                chunk = await anext(stream, None)
        except TimeoutError as error:
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

    NaN and Infinity, which JSON does not have but many writers produce, come back as floats with False, so that the
    field that holds one can be named.
    """
    strict = True

    def constant(name: str) -> float:
        nonlocal strict
        strict = False
        return {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}[name]

    try:
        value = json.loads(data.decode("utf-8"), parse_constant=constant)
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
    if not isinstance(value, dict):
        raise InvalidRequest("the body must be a JSON object")
    return value, strict


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

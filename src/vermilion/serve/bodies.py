"""A request's body: read up to a limit, unpacked, and taken for JSON."""

from __future__ import annotations

import json
import zlib
from typing import Any

from starlette.requests import ClientDisconnect, Request

from vermilion.serve.refusals import TooLargeError, WrongRequestError

# What zlib is told of the two forms that HTTP names.
_WINDOW = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_MOST_DEPTH = 64


async def body_of(request: Request, most_bytes: int) -> bytes:
    """Return a request's body. Raises: TooLargeError, WrongRequestError."""
    pieces: list[bytes] = []
    size = 0
    try:
        async for piece in request.stream():
            size += len(piece)
            if size > most_bytes:
                raise _too_large(most_bytes)
            pieces.append(piece)
    except ClientDisconnect as error:
        raise WrongRequestError("the body ended before its end") from error
    return _unpacked(b"".join(pieces), request.headers.get("content-encoding", ""), most_bytes)


def _unpacked(data: bytes, encoding: str, most_bytes: int) -> bytes:
    if encoding in ("", "identity"):
        return data
    if encoding not in _WINDOW:
        raise WrongRequestError(
            f"the body is packed as `{encoding[:40]}`", hint="`gzip` and `deflate` are read"
        )
    unpack = zlib.decompressobj(_WINDOW[encoding])
    try:
        found = unpack.decompress(data, most_bytes + 1)
    except zlib.error as error:
        raise WrongRequestError(f"the body is no {encoding}: {error}") from error
    if len(found) > most_bytes:
        raise _too_large(most_bytes)
    if not unpack.eof or unpack.unused_data:
        raise WrongRequestError(f"the body is not one whole {encoding} stream")
    return found


def _too_large(most_bytes: int) -> TooLargeError:
    return TooLargeError(
        f"the body has more than {most_bytes:,} bytes", hint="`--max-body` says how many it may"
    )


def object_of(data: bytes | memoryview) -> dict[str, Any]:
    """Return the JSON object that a body is. Raises: WrongRequestError."""
    text = bytes(data)
    try:
        found = json.loads(text)
    except RecursionError as error:
        raise WrongRequestError("the JSON is nested too deeply") from error
    except ValueError as error:
        raise WrongRequestError(f"the body is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise WrongRequestError("the body is no JSON object")
    if text.count(b"[") + text.count(b"{") > _MOST_DEPTH and _depth(text) > _MOST_DEPTH:
        raise WrongRequestError("the JSON is nested too deeply")
    return found


def _depth(text: bytes) -> int:
    """Return how deep brackets are nested, at most: those in strings count too."""
    depth = most = 0
    for letter in text:
        if letter in b"[{":
            depth += 1
            most = max(most, depth)
        elif letter in b"]}":
            depth -= 1
    return most

"""What comes from a client and goes to it: bodies up to a limit, JSON, and whether it is there."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Awaitable
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from vermilion.serve.refusals import ClientGone, TooLargeError, WrongRequestError

Result = TypeVar("Result")

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
    if encoding.lower() not in _WINDOW:
        raise WrongRequestError(
            f"the body is packed as `{encoding[:40]}`", hint="`gzip` and `deflate` are read"
        )
    unpack = zlib.decompressobj(_WINDOW[encoding.lower()])
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
    found = json_of(bytes(data), "the body")
    if not isinstance(found, dict):
        raise WrongRequestError("the body is no JSON object")
    return found


def json_of(text: bytes | str, what: str) -> Any:
    """Return what JSON says, nested only so deep that it can be written again.

    Raises: WrongRequestError that names `what` it is.
    """
    try:
        found = json.loads(text)
    except RecursionError as error:
        raise WrongRequestError(f"{what} is nested too deeply") from error
    except ValueError as error:
        raise WrongRequestError(f"{what} is no JSON: {error}") from error
    if _is_deep(found):
        raise WrongRequestError(f"{what} is nested too deeply")
    return found


def _is_deep(found: Any) -> bool:
    """Say whether lists and objects lie in one another more than `_MOST_DEPTH` deep."""
    level = [found] if isinstance(found, list | dict) else []
    for _ in range(_MOST_DEPTH):
        rows = (row.values() if isinstance(row, dict) else row for row in level)
        level = [one for row in rows for one in row if isinstance(one, list | dict)]
        if not level:
            return False
    return True


def json_bytes(content: Any) -> bytes:
    """Return content as JSON, in UTF-8. Raises: ValueError for NaN and infinities.

    A lone surrogate, which a client may have sent, is written as its escape: UTF-8 has no other
    form of it.
    """
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace")


class JsonResponse(Response):
    """An answer in JSON, whatever texts are in it."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the bytes of the body."""
        return json_bytes(content)


async def unless_gone(request: Request, work: Awaitable[Result]) -> Result:
    """Wait for work as long as the client does; then it is ended. Raises: ClientGone."""
    doing = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({doing, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise ClientGone("the client left")
        return doing.result()
    finally:
        for task in (doing, gone):
            task.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass

"""What stands before every route: keys, origins, the size of bodies, request ids, log and count."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import traceback
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vermilion.errors import OptionError, VermilionError
from vermilion.serve.bodies import JsonResponse
from vermilion.serve.metrics import Log, Metrics, stopwatch
from vermilion.serve.refusals import (
    FaultError,
    NoKeyError,
    QueueFullError,
    RequestRefused,
    TooLargeError,
    status_of,
    words_of,
)
from vermilion.serve.settings import Settings

# What is answered to whoever asks: whether the server is there, and the page itself.
_OPEN_PATHS = frozenset({"/", "/v2/health/live", "/v2/health/ready"})
# What is asked for every few seconds, and by nobody who wants to read of it.
_NOT_LOGGED = frozenset({"/v2/health/live", "/v2/health/ready", "/metrics"})
_LOCAL = frozenset({"127.0.0.1", "localhost", "::1"})
_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_LEAST_KEY = 16


class OriginError(RequestRefused):
    """The request comes from a page of somebody else's."""

    status = 403


def read_keys(path: Path) -> tuple[bytes, ...]:
    """Return the digests of a file's keys, one a line; `#` begins a remark.

    Raises: OptionError where the file cannot be read, holds none, or one that can be guessed.
    """
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        words = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
        raise OptionError(f"the keys cannot be read: {words}", where=str(path)) from error
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise OptionError("the file holds no key", where=str(path))
    if any(len(key) < _LEAST_KEY for key in keys):
        raise OptionError(
            f"a key has fewer than {_LEAST_KEY} characters",
            where=str(path),
            hint="`python -c 'import secrets; print(secrets.token_urlsafe(32))'` makes one",
        )
    return tuple(_digest(key) for key in keys)


def is_known(given: str, digests: Iterable[bytes]) -> bool:
    """Say whether a key is one of those: in the same time whichever it is like."""
    own, found = _digest(given), False
    for digest in digests:
        found |= hmac.compare_digest(own, digest)
    return found


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def error_response(error: VermilionError, path: str) -> JsonResponse:
    """Return what a client is told, in the form of the API that it asked."""
    status, words = status_of(error), words_of(error)
    headers = {}
    if isinstance(error, QueueFullError):
        headers["Retry-After"] = str(error.retry_after_s)
    if isinstance(error, NoKeyError):
        headers["WWW-Authenticate"] = "Bearer"
    if not path.startswith("/v1/"):
        return JsonResponse({"error": words}, status, headers)
    kind = "invalid_request_error" if status < 500 and status != 429 else "server_error"
    code = {404: "model_not_found", 429: "rate_limit_exceeded", 401: "invalid_api_key"}.get(status)
    body = {"error": {"message": words, "type": kind, "param": None, "code": code}}
    return JsonResponse(body, status, headers)


def fault_response(scope: Scope) -> JsonResponse:
    """Return what a client is told of an exception, and where the log has it."""
    where = f"its log, {scope['vermilion']['id']}"
    return error_response(FaultError("this is a fault of the server", hint=where), scope["path"])


class Guard:
    """The outermost application."""

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics, log: Log) -> None:
        self._app, self._settings, self._metrics, self._log = app, settings, metrics, log
        self._keys = read_keys(settings.keys) if settings.keys is not None else ()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or refuse it; count it and log it."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        headers, path = Headers(scope=scope), scope["path"]
        given = headers.get("x-request-id", "")
        identity = given if _ID.fullmatch(given) else secrets.token_hex(8)
        about = scope["vermilion"] = {"id": identity, "model": ""}
        elapsed, status = stopwatch(), 0

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-ID"] = identity
            await send(message)

        try:
            self._check(path, scope["method"], headers)
            await self._app(scope, receive, answer)
        except VermilionError as error:
            if not status:
                await error_response(error, path)(scope, receive, answer)
        except Exception:  # the last door: a fault of ours is told as one, and logged
            self._log.write("fault", id=identity, path=path, traceback=traceback.format_exc())
            if not status:
                await fault_response(scope)(scope, receive, answer)
        finally:
            seconds = elapsed()
            if path not in _OPEN_PATHS and path != "/metrics":
                api = {"v1": "openai", "v2": "kserve"}.get(path[1:3], "other")
                self._metrics.request(about["model"], api, status, seconds)
            if path not in _NOT_LOGGED:
                self._log.write(
                    "request", id=identity, method=scope["method"], path=path, status=status,
                    model=about["model"], ms=round(1e3 * seconds, 3),
                )  # fmt: skip

    def _check(self, path: str, method: str, headers: Headers) -> None:
        """Raise what refuses a request before its body is read."""
        host = headers.get("host", "")
        local = self._settings.host in _LOCAL and not self._keys
        if local and _name(host) not in {*_LOCAL, self._settings.host}:
            # Another name that leads here is that of a page that had itself resolved to it.
            raise OriginError("the server answers on this machine's own names alone")
        origin = headers.get("origin")
        allowed = origin is None or origin in self._settings.cors or "*" in self._settings.cors
        if not allowed and (origin or "").partition("://")[2] != host:
            raise OriginError("pages of other places are not answered", hint="`--cors ORIGIN`")
        is_preflight = method == "OPTIONS" and bool(self._settings.cors)
        if self._keys and path not in _OPEN_PATHS and not is_preflight:
            scheme, _, key = headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not is_known(key.strip(), self._keys):
                raise NoKeyError(
                    "no API key that is known here", hint="`Authorization: Bearer KEY`"
                )
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()):
            raise RequestRefused("`content-length` is no number")
        if len(length) > 18 or int(length) > self._settings.max_body_bytes:
            raise TooLargeError(f"the body has more than {self._settings.max_body_bytes:,} bytes")


def _name(netloc: str) -> str:
    try:
        return urlsplit(f"//{netloc}").hostname or ""
    except ValueError:
        return ""

"""Why a request is not answered as asked, each with its HTTP status."""

from __future__ import annotations

from typing import ClassVar

from vermilion.errors import (
    ArtifactError,
    DeviceError,
    ModelError,
    OptionError,
    UnsupportedError,
    VermilionError,
)


class RequestRefused(VermilionError):
    """A request that is not carried out."""

    status: ClassVar[int] = 400


class WrongRequestError(RequestRefused):
    """What was sent cannot be read, or does not fit the model."""


class NoKeyError(RequestRefused):
    """The request names no API key that is known here."""

    status = 401


class NotServedError(RequestRefused):
    """There is no such model, version or page."""

    status = 404


class TooLargeError(RequestRefused):
    """The body is larger than the server takes."""

    status = 413


class QueueFullError(RequestRefused):
    """More requests wait than may; `retry_after_s` says when it is worth asking again."""

    status = 429

    def __init__(self, message: str, *, retry_after_s: int) -> None:
        super().__init__(message, hint=f"ask again in {retry_after_s} s")
        self.retry_after_s = retry_after_s


class WorkerLostError(RequestRefused):
    """The process that computed the request ended, and so did another one."""

    status = 500


class ClientGone(RequestRefused):
    """Nobody waits for the answer any more."""

    status = 499


class FaultError(RequestRefused):
    """Something in the server or the model went wrong that is not the request's fault."""

    status = 500


class NotReadyError(RequestRefused):
    """The model is not loaded, or the server is being stopped."""

    status = 503


class TooLateError(RequestRefused):
    """The request took longer than it may."""

    status = 504


# What other errors stand for, when a request meets them: the first that fits.
_STATUS: tuple[tuple[type[VermilionError], int], ...] = (
    (OptionError, 400),
    (UnsupportedError, 400),
    (ModelError, 400),
    (ArtifactError, 500),
    (DeviceError, 500),
)


def status_of(error: VermilionError) -> int:
    """Return the HTTP status for an error."""
    if isinstance(error, RequestRefused):
        return error.status
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def words_of(error: VermilionError) -> str:
    """Return what a client is told: no paths of this machine, which `where` may hold."""
    return f"{error.message}; {error.hint}" if error.hint else error.message

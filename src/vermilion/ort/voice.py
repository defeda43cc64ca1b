"""What a session has to say, each thing once, in `notes` and in the log; and its errors.

Those are ours under ONNX Runtime's classes too: a script catches what it always caught.
"""

from __future__ import annotations

import logging
import threading

from vermilion.errors import (
    ArtifactError,
    DeviceError,
    ModelError,
    OptionError,
    UnsupportedError,
    VermilionError,
)
from vermilion.process.child import error_of

_log = logging.getLogger("vermilion")
_WARNING = 2  # of ONNX Runtime's severities
# ONNX Runtime's severities, verbose to fatal, as Python's.
_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)


heard: set[str] = set()
"""What was logged in this process: a server opens many sessions with the same options."""


class Voice:
    """Says each thing once, and logs it once in a process. Safe for several threads.

    A warning is visible where nobody set up logging: Python then prints it on stderr.
    """

    def __init__(self, severity: int, log_id: str) -> None:
        self._is_heard = severity <= _WARNING
        self._before = f"[{log_id}] " if log_id else ""
        self._said: dict[str, None] = {}
        self._lock = threading.Lock()

    @property
    def notes(self) -> tuple[str, ...]:
        """All that was said."""
        return tuple(self._said)

    def say(self, *words: str) -> None:
        """Say what a user must know."""
        for text in words:
            if self._is_new(text) and self._is_heard and text not in heard:
                heard.add(text)
                _log.warning("%s%s", self._before, text)

    def keep(self, *words: str) -> None:
        """Keep what a user may want to know: it is in `notes`, and in the log for who asks."""
        for text in words:
            if self._is_new(text):
                _log.info("%s%s", self._before, text)

    def renew_lock(self) -> None:
        """Make the lock anew, in a forked process."""
        self._lock = threading.Lock()

    def _is_new(self, text: str) -> bool:
        with self._lock:
            is_new = text not in self._said
            self._said[text] = None
        return is_new


def set_default_logger_severity(severity: int) -> None:
    """Set which messages are heard, ONNX Runtime's and ours: 0 all, 2 warnings, 4 fatal errors."""
    import onnxruntime as ort

    ort.set_default_logger_severity(severity)
    _log.setLevel(_LEVELS[severity])


# Of `onnxruntime.capi.onnxruntime_pybind11_state`.
_OPENED: tuple[tuple[type[VermilionError], tuple[str, ...]], ...] = (
    (ModelError, ("InvalidProtobuf", "InvalidGraph", "InvalidArgument", "Fail")),
    (UnsupportedError, ("NotImplemented",)),
    (OptionError, ("InvalidArgument",)),
    (ArtifactError, ("Fail",)),
    (DeviceError, ("Fail",)),
)

_OF_PYTHON = {"ValueError": ValueError, "RuntimeError": RuntimeError}


def for_opening(error: VermilionError, *, is_missing: bool = False) -> VermilionError:
    """Return an error of opening a model, also as ONNX Runtime's; `is_missing`: there is no file.

    What it raises for a damaged file depends on where its parser stumbles; ours is each of those.
    """
    if is_missing:
        return also(error, "NoSuchFile")
    return also(error, *next((names for kind, names in _OPENED if isinstance(error, kind)), ()))


def also(error: VermilionError, *names: str) -> VermilionError:
    """Return the same error, which is also one of each of these classes."""
    kind = _kind(type(error), names)
    return error_of(kind, error.message, where=error.where, hint=error.hint)


def _kind(own: type[VermilionError], names: tuple[str, ...]) -> type[VermilionError]:
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    others = [_OF_PYTHON[name] if name in _OF_PYTHON else getattr(state, name) for name in names]
    if any(issubclass(own, one) for one in others):
        return own
    facts = {"__module__": own.__module__, "__doc__": own.__doc__}
    return type(own.__name__, (own, *others), facts)

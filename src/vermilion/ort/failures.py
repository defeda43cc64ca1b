"""Our errors under ONNX Runtime's classes too: a script catches what it always caught."""

from __future__ import annotations

from vermilion.errors import (
    ArtifactError,
    DeviceError,
    ModelError,
    OptionError,
    UnsupportedError,
    VermilionError,
)
from vermilion.process.child import error_of

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

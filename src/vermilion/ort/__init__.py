"""ONNX Runtime's names on our engine: `import vermilion.ort as ort` runs a script as it is.

What computes is ours: `InferenceSession` and what goes with it. All else is ONNX Runtime's own,
loaded when it is first asked for; so are its submodules.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vermilion.ort.binding import IOBinding as IOBinding
    from vermilion.ort.options import RunOptions as RunOptions
    from vermilion.ort.options import SessionOptions as SessionOptions
    from vermilion.ort.providers import get_available_providers as get_available_providers
    from vermilion.ort.session import InferenceSession as InferenceSession
    from vermilion.ort.voice import set_default_logger_severity as set_default_logger_severity
    from vermilion.runtime.session import ModelMetadata as ModelMetadata
    from vermilion.runtime.session import NodeArg as NodeArg

OWN = {
    "IOBinding": "vermilion.ort.binding",
    "InferenceSession": "vermilion.ort.session",
    "ModelMetadata": "vermilion.runtime.session",
    "NodeArg": "vermilion.runtime.session",
    "RunOptions": "vermilion.ort.options",
    "SessionOptions": "vermilion.ort.options",
    "get_available_providers": "vermilion.ort.providers",
    "set_default_logger_severity": "vermilion.ort.voice",
}
"""The names that are ours, and the modules that they are in."""


def __getattr__(name: str) -> Any:
    if name in OWN:
        return getattr(import_module(OWN[name]), name)
    if name == "__all__":  # for `from vermilion.ort import *`
        return __dir__()
    if name.startswith("__") and name != "__version__":
        raise AttributeError(name)
    theirs = import_module("onnxruntime")
    if not hasattr(theirs, name):
        try:
            return import_module(f"onnxruntime.{name}")
        except ModuleNotFoundError as error:
            raise AttributeError(
                f"neither `vermilion.ort` nor `onnxruntime` has the name `{name}`"
            ) from error
    return getattr(theirs, name)


def __dir__() -> list[str]:
    return sorted({*OWN, *(name for name in dir(import_module("onnxruntime")) if name[0] != "_")})

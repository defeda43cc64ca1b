"""Take a model to AMD CPUs, GPUs and NPUs: quantize, place, compile, run, prove.

Names are loaded when they are first used, so that `import vermilion` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vermilion.version import VERSION as __version__

if TYPE_CHECKING:
    from vermilion.api import Compiled, compile_model
    from vermilion.errors import VermilionError
    from vermilion.export import export_model
    from vermilion.inspection import inspect_model
    from vermilion.ort.session import InferenceSession, Session
    from vermilion.quantization import quantize_file

__all__ = [
    "Compiled",
    "InferenceSession",
    "Session",
    "VermilionError",
    "__version__",
    "compile_model",
    "export_model",
    "inspect_model",
    "quantize_file",
]

_HOMES = {
    "Compiled": "api",
    "InferenceSession": "ort.session",
    "Session": "ort.session",
    "VermilionError": "errors",
    "compile_model": "api",
    "export_model": "export",
    "inspect_model": "inspection",
    "quantize_file": "quantization",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module `vermilion` has no name `{name}`")
    from importlib import import_module

    return getattr(import_module(f"vermilion.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__

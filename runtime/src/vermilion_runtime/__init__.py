"""Run models that Vermilion compiled, with numpy alone.

    from vermilion_runtime import Session

    session = Session("model.rai")
    (y,) = session.run(None, {"x": x})

What a model needs beside its machine code (ONNX Runtime, a compiler) is in the package `vermilion`.
"""

from vermilion_runtime.errors import (
    ArtifactError,
    DataError,
    DeviceError,
    OptionError,
    OtherSizesError,
    TrustError,
    UnsupportedError,
    VermilionError,
)
from vermilion_runtime.session import NodeArg, Session

__all__ = [
    "ArtifactError",
    "DataError",
    "DeviceError",
    "NodeArg",
    "OptionError",
    "OtherSizesError",
    "Session",
    "TrustError",
    "UnsupportedError",
    "VermilionError",
]

"""`torch.compile(model, backend="vermilion")`: graphs of PyTorch on machine code of our own.

PyTorch finds the backend through the entry point of this package; torch is not imported before it
does. Compiled is what computes outputs from inputs, for inference, on the CPU. What cannot be is
run by PyTorch, and a `RunsEagerlyWarning` says why.
"""

from vermilion.export.dynamo.backend import (
    CompiledGraph,
    NotNativeWarning,
    RunsEagerlyWarning,
    TorchBackend,
    torch_backend,
)
from vermilion.export.dynamo.options import TorchOptions

__all__ = [
    "CompiledGraph",
    "NotNativeWarning",
    "RunsEagerlyWarning",
    "TorchBackend",
    "TorchOptions",
    "torch_backend",
]

"""From PyTorch: modules as ONNX files, and `torch.compile` on machine code of our own.

An exported file has opset 17 (18 where PyTorch does that alone), fixed sizes but for those that are
given a name, and a proof that both compute the same.

Exporting runs the user's own Python code: that is how a module comes to be. Nothing else in this
package runs code that a user's file holds.
"""

from vermilion.export.dynamo import (
    CompiledGraph,
    NotNativeWarning,
    RunsEagerlyWarning,
    TorchBackend,
    TorchOptions,
    torch_backend,
)
from vermilion.export.model import ExportReport, TensorFacts, export_model

__all__ = [
    "CompiledGraph",
    "ExportReport",
    "NotNativeWarning",
    "RunsEagerlyWarning",
    "TensorFacts",
    "TorchBackend",
    "TorchOptions",
    "export_model",
    "torch_backend",
]

"""PyTorch → ONNX: fixed shapes, opset 17, and a proof that both compute the same.

Exporting runs the user's own Python code: that is how a module comes to be. Nothing else in this
package runs code that a user's file holds.
"""

from vermilion.export.model import ExportReport, TensorFacts, export_model

__all__ = ["ExportReport", "TensorFacts", "export_model"]

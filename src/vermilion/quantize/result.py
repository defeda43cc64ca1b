"""What quantizing gives."""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir as ir

from vermilion.ir.measure import Agreement
from vermilion.quantize.details import TensorDetail
from vermilion.quantize.low_resolution import LowResolution
from vermilion.quantize.options import Options
from vermilion.quantize.report import LayerError

# Samples on which outputs and layers are compared. An int8 model may run two to three times slower
# than the float one on a CPU (an int8 bias keeps ONNX Runtime from fusing), so not on all.
OUTPUT_SAMPLES = 4
LAYER_SAMPLES = 2


@dataclass(frozen=True)
class Quantized:
    """A quantized model, and how far it is from the original.

    `own_samples` of all samples ran in our own kernels, in bfloat16, the others in ONNX Runtime.
    `outputs` and `layers` were measured on the first samples. `moved` scales were made coarser to
    fit the NPU's shifters; at the nodes in `unmet` its limits still do not hold.
    `crowded` tensors share a scale that is too coarse for them. `eight_bit_share` is the part of
    all operations that matrix products on 8 bits have. `details` are there where they were asked
    for.
    """

    model: ir.Model
    scheme: str
    samples: int
    outputs: tuple[Agreement, ...]
    layers: tuple[LayerError, ...]
    options: Options = field(default_factory=Options)
    eight_bit_share: float = 0.0
    moved: int = 0
    unmet: tuple[str, ...] = ()
    crowded: tuple[LowResolution, ...] = ()
    details: tuple[TensorDetail, ...] = ()
    own_samples: int = 0

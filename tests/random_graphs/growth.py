"""A random graph from a seed: which operators, in which opset, of which number format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from random_graphs import elementwise, moving, patterns, products, quantized, recurrent, reductions
from random_graphs.elementwise import Build
from random_graphs.graph_writer import FORMATS, GraphWriter, IllegalError
from random_graphs.schemas import SchemaGrower
from vermilion.codegen.isa import isa_of
from vermilion.hardware.targets.find import find_target

Array = NDArray[Any]

BUILDERS: Mapping[str, tuple[int, Build]] = {
    **elementwise.BUILDERS, **moving.BUILDERS, **products.BUILDERS, **reductions.BUILDERS,
    **recurrent.BUILDERS, **quantized.BUILDERS, **patterns.BUILDERS,
}  # fmt: skip
OPSETS = tuple(range(7, 27))
# Graphs of operators that the schemas of the standard name, of all number formats together.
ANY = "any"
# Drawn more often: they have the most kernels and the most forms.
_OFTEN = (
    "Conv", "Conv", "Conv", "MatMul", "MatMul", "Gemm", "ConvTranspose", "attention", "Add", "Mul",
    "Transpose", "Reshape", "Concat", "AveragePool", "MaxPool", "Resize", "LSTM", "GRU",
)  # fmt: skip
# Integers are made by other number formats' graphs too, but need not be.
_QUANTIZED = tuple(quantized.BUILDERS)

HAS_BF16 = isa_of(find_target("cpu")).has_bf16


@dataclass(frozen=True)
class RandomGraph:
    """A model, inputs for it, and what it was grown from."""

    seed: int
    number_format: str
    model: onnx.ModelProto
    inputs: Mapping[str, Array]
    refused: tuple[str, ...]  # nodes that ONNX Runtime did not take while it grew


def grow(seed: int, number_format: str) -> RandomGraph:
    """Return the graph of a seed; the same one every time, on every machine with this ONNX."""
    if number_format == ANY:
        return _of_schemas(seed)
    random = np.random.default_rng([seed, FORMATS.index(number_format)])
    # bfloat16 is a type of most operators since 22, of few before 13.
    lowest = {"int8": 10, "bf16-model": 22 if random.random() < 0.8 else 13}.get(number_format, 7)
    opset = int(random.integers(lowest, OPSETS[-1] + 1))
    writer = GraphWriter(random, opset, number_format)
    if number_format == "int8":
        writer.quantize_after = quantized.quantize_after
    known = [name for name, (since, _) in BUILDERS.items() if since <= opset]
    if number_format != "int8":
        known = [name for name in known if name not in _QUANTIZED or writer.maybe(0.3)]
    wanted = writer.one_of([1, 2, 3, 3, 5, 8, 12])
    done = tries = 0
    while (done < wanted or not writer.nodes) and tries < 60:
        tries += 1
        name = writer.one_of(_OFTEN if writer.maybe(0.3) else known)
        try:
            if name in known:
                BUILDERS[name][1](writer)
                done += 1
        except IllegalError:
            continue
    return RandomGraph(seed, number_format, writer.model(), writer.inputs, tuple(writer.refused))


def _of_schemas(seed: int) -> RandomGraph:
    random = np.random.default_rng([seed, len(FORMATS)])
    grower = SchemaGrower(random)
    wanted, tries = int(random.choice([1, 2, 3, 4, 6])), 0
    while len(grower.nodes) < wanted and (tries < 60 * wanted or not grower.nodes):
        grower.grow()
        tries += 1
    is_half = any(array.dtype == np.float16 for array in grower.values.values())
    number_format = "fp16" if is_half else "fp32"
    return RandomGraph(seed, number_format, grower.model(), grower.inputs, ())

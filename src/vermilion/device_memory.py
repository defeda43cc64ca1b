"""What a model needs on a device, before it runs there: modelled from its graph.

Four terms. Weights are counted. Activations lie between two bounds: what is alive at once, which
an allocator that reuses everything takes, and all that is made, which one that reuses nothing does.
Workspace and the runtime's own share are taken from documents, and named so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import onnx_ir as ir

from vermilion.errors import OptionError
from vermilion.ir.cost import value_bytes
from vermilion.ir.literal.types import complete_types
from vermilion.ir.passes.bind_dimensions import Dimensions, open_dimensions
from vermilion.ir.passes.pipeline import simplify
from vermilion.ir.source import ModelSource, open_source
from vermilion.progress import Progress, no_progress

# rocBLAS takes this much scratch memory when its handle is made; on gfx94x 128 MiB. Source: rocBLAS
# documentation, "Device memory allocation".
WORKSPACE_BYTES = 32 << 20
WORKSPACE_BYTES_OF_GFX94 = 128 << 20
# HIP's context, code objects and the provider's own buffers: what is left of published figures
# (ResNet-50 on a Radeon RX 7900 XTX, MIGraphX 742 MB and ROCm 876 MB at batch 1) without weights
# and activations. Quoted, not measured here.
RUNTIME_BYTES = (300 << 20, 730 << 20)

PRECISIONS: Mapping[str, int] = {"fp32": 32, "fp16": 16, "bf16": 16, "int8": 8, "int4": 4}


@dataclass(frozen=True)
class MemoryNeed:
    """What one batch and length needs, in bytes; pairs are a lower and an upper bound."""

    batch: int
    length: int
    weights: int
    activations: tuple[int, int]
    workspace: int
    cache: int = 0  # keys and values of a decoder
    runtime: tuple[int, int] = RUNTIME_BYTES

    @property
    def total(self) -> tuple[int, int]:
        """Return the sum of all, as bounds."""
        sure = self.weights + self.workspace + self.cache
        low, high = self.activations
        return sure + low + self.runtime[0], sure + high + self.runtime[1]

    def as_json(self) -> dict[str, object]:
        """Return the keys of `memory --json`."""
        return asdict(self) | {"total": self.total, "is": "modelled"}


def bits_of(precision: str) -> int:
    """Return the bits of a number. Raises: OptionError for a precision that there is not."""
    if precision not in PRECISIONS:
        names = ", ".join(PRECISIONS)
        raise OptionError(f"`--precision {precision}` is none of these", hint=f"one of {names}")
    return PRECISIONS[precision]


def workspace_of(gpu: str) -> int:
    """Return the scratch memory that a GPU's library takes."""
    return WORKSPACE_BYTES_OF_GFX94 if gpu.startswith("gfx94") else WORKSPACE_BYTES


def estimate_memory(
    model: ModelSource,
    *,
    batches: Sequence[int] = (1,),
    dims: Dimensions | None = None,
    precision: str = "",
    gpu: str = "",
    progress: Progress = no_progress,
) -> tuple[MemoryNeed, ...]:
    """Return what a model needs at each batch; with a precision, in its numbers.

    The batch is the first dimension of the inputs where that is open; a fixed one counts as it is.

    Raises: OptionError for a size or precision that cannot be; ModelError for the model.
    """
    bits = bits_of(precision) if precision else 0
    source = open_source(model)
    name = _batch_dimension(source)
    found = []
    for batch in batches if name else (0,):
        bound = {**(dims or {}), **({name: batch} if name and batch else {})}
        made = simplify(source, dims=bound or None, progress=progress).model
        complete_types(made)
        left = open_dimensions(made)
        if left:
            raise OptionError(
                f"`{', '.join(left)}` is dynamic, so sizes are not known",
                hint=" ".join(f"--dim {one}=…" for one in left),
            )
        found.append(_need(made, batch or _fixed_batch(made), bits, gpu))
    return tuple(found)


def _batch_dimension(model: ir.Model) -> str:
    """Return the name of the open dimension that the inputs begin with, empty without one."""
    for value in model.graph.inputs:
        first = value.shape[0] if value.shape is not None and len(value.shape) else None
        if isinstance(first, ir.SymbolicDim) and first.value:
            return str(first.value)
    return ""


def _fixed_batch(model: ir.Model) -> int:
    shapes = [value.shape for value in model.graph.inputs if value.shape]
    first = shapes[0][0] if shapes and len(shapes[0]) else 1
    return first if isinstance(first, int) else 1


def _need(model: ir.Model, batch: int, bits: int, gpu: str) -> MemoryNeed:
    weights = sum(
        _sized(value, bits) for value in model.graph.initializers.values() if value.const_value
    )
    return MemoryNeed(batch, 0, weights, _activations(model, bits), workspace_of(gpu))


def _sized(value: ir.Value | None, bits: int) -> int:
    """Return a value's bytes, floating-point numbers in so many bits."""
    size = value_bytes(value)
    if not bits or value is None or value.dtype is None or not value.dtype.is_floating_point():
        return size
    return size * bits // value.dtype.bitwidth


def _activations(model: ir.Model, bits: int) -> tuple[int, int]:
    """Return the most bytes alive at once, in the graph's order, and the bytes of all."""
    nodes = [node for node in model.graph if node.op_type != "Constant"]
    last: dict[str, int] = {}
    for place, node in enumerate(nodes):
        for value in _read_by(node):
            last[value] = place
    results = {value.name for value in model.graph.outputs}
    sizes = {v.name or "": _sized(v, bits) for v in model.graph.inputs if v.const_value is None}
    alive = sum(sizes.values())
    most, every = alive, alive
    for place, node in enumerate(nodes):
        made = sum(_sized(value, bits) for value in node.outputs if value.name)
        sizes |= {value.name: _sized(value, bits) for value in node.outputs if value.name}
        alive += made
        every += made
        most = max(most, alive)
        for name in {*_read_by(node), *(v.name for v in node.outputs if v.name)}:
            if last.get(name, place) <= place and name not in results:
                alive -= sizes.pop(name, 0)
    return most, every


def _read_by(node: ir.Node) -> list[str]:
    names = [v.name for v in node.inputs if v is not None and v.name and v.const_value is None]
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            names += [name for inner in attribute.as_graph() for name in _read_by(inner)]
    return names

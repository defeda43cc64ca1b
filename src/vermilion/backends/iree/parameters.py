"""Large weights apart from the programs: once in a bundle, whatever number of programs read them.

A program names its weights by keys (`weight0`, …). `part.onnx` has them under their names in the
model, and its bytes lie in the bundle's `weights.bin`, where equal ones lie once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from vermilion.backends.base import Array
from vermilion.errors import ArtifactError
from vermilion.ir.execute import LENT_BYTES
from vermilion.process.arrays import write_values
from vermilion.quantize.names import Names

# What the importer leaves out of its text, in elements. Smaller ones are constants of the program:
# the compiler folds and fuses them.
# The least that `part.onnx` keeps outside itself, which so has all that the importer leaves out.
LEAST_ELEMENTS = LENT_BYTES
SCOPE = "weights"
WEIGHTS_FILE = "weights.raw"  # in the folder of a worker


@dataclass(frozen=True)
class Parameter:
    """What a program reads under `key`: the tensor `of` in `part.onnx`."""

    key: str
    of: str


def name_parameters(model: ir.Model) -> tuple[Parameter, ...]:
    """Rename the weights that the importer leaves out, in place; none where one has to stay.

    The importer makes keys of names, and two names may make one key.
    """
    graph, found = model.graph, list[Parameter]()
    large = {
        name: value.const_value
        for name, value in graph.initializers.items()
        if value.const_value is not None and value.const_value.size >= LEAST_ELEMENTS
    }
    if not all(is_lent(graph.initializers[name]) for name in large):
        return ()
    names = Names(graph)
    for name, tensor in large.items():
        value = graph.initializers[name]
        renamed = names.constant(f"weight{len(found)}", tensor.numpy(), tensor.dtype)
        for use in list(value.uses()):
            use.node.replace_input_with(use.idx, renamed)
        del graph.initializers[name]
        found.append(Parameter(str(renamed.name), name))
    return tuple(found)


def is_lent(value: ir.Value) -> bool:
    """Say whether a weight is one that nodes alone read, of whole bytes."""
    tensor = value.const_value
    return (
        tensor is not None
        and tensor.dtype != ir.DataType.STRING
        and tensor.dtype.bitwidth >= 8
        and bool(value.uses())
        and not value.is_graph_output()
        and not value.is_graph_input()
    )


def write_weights(
    parameters: tuple[Parameter, ...], weights: Mapping[str, Array], folder: Path
) -> str:
    """Write what a program reads for its worker; return where it lies, as text.

    Raises: ArtifactError where one is not there; OSError where there is no room.
    """
    missing = [parameter.of for parameter in parameters if parameter.of not in weights]
    if missing:
        raise ArtifactError(
            f"the compiled part's weight `{missing[0]}` is not in the bundle",
            hint="compile the model again",
        )
    rows = write_values({p.key: weights[p.of] for p in parameters}, folder / WEIGHTS_FILE)
    sizes = {p.key: weights[p.of].nbytes for p in parameters}
    return json.dumps({key: [row["at"], sizes[key]] for key, row in rows.items()})


def mapped_weights(text: str, folder: Path) -> Iterator[tuple[str, Array]]:
    """Yield the key and the bytes of each weight that `write_weights` has written."""
    places = json.loads(text)
    if not places:
        return
    data = np.memmap(folder / WEIGHTS_FILE, dtype=np.uint8, mode="r")
    for key, (start, size) in places.items():
        yield key, np.asarray(data[start : start + size])

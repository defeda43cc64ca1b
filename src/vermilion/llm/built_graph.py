"""A graph that the builder wrote, held against what its source says: windows and rotations.

onnxruntime-genai's builder 0.18 leaves out windows of models whose configuration does not list its
layers (Mistral, Phi-3), rules of `rope_scaling` that a family's own class does not read, and the
factors in a GGUF file. What differs is put right, in the graph and in the file of its weights; what
cannot be is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vermilion.errors import ModelError, UnsupportedError
from vermilion.llm.engine.description import Rotation
from vermilion.llm.source.blueprint import Blueprint
from vermilion.llm.source.open_source import find_source

# Cosines that differ by more are others: float32 and float16 round them, and the angles of long
# contexts, by less.
_LARGEST_DIFFERENCE = 2e-2
_TABLES = (7, 8)  # inputs of GroupQueryAttention
_TURNED_TABLES = (2, 3)  # of RotaryEmbedding


def mend_graph(source: Path, model_file: Path) -> tuple[str, ...]:
    """Put right what a built graph has otherwise than its source; say what that was.

    Raises: UnsupportedError, ModelError for what cannot be put right.
    """
    try:
        found = find_source(source)
        blueprint = found.blueprint() if found is not None else None
    except UnsupportedError:
        return ()  # of an architecture that is not read here there is nothing to hold it against
    if blueprint is None:
        return ()
    import onnx

    model = onnx.load(model_file, load_external_data=False)
    graph = _Graph(model_file.parent, model)
    said = [*_windows(graph, blueprint), *_rotations(graph, blueprint)]
    if graph.is_changed:
        onnx.save(model, model_file)
    return tuple(dict.fromkeys(said))


@dataclass
class _Graph:
    folder: Path
    model: Any
    is_changed: bool = False
    mended: set[str] = field(default_factory=set)

    def nodes(self, kind: str) -> list[Any]:
        return [node for node in self.model.graph.node if node.op_type == kind]

    def initializer(self, name: str) -> Any:
        return next((one for one in self.model.graph.initializer if one.name == name), None)

    def read(self, tensor: Any) -> NDArray[Any]:
        from onnx import numpy_helper

        return numpy_helper.to_array(tensor, str(self.folder))

    def write(self, tensor: Any, values: NDArray[Any]) -> None:
        """Put other numbers in the place of a tensor's, in the model or beside it."""
        places = {one.key: one.value for one in tensor.external_data}
        if places:
            with (self.folder / places["location"]).open("r+b") as stream:
                stream.seek(int(places.get("offset", 0)))
                stream.write(np.ascontiguousarray(values).tobytes())
            return
        tensor.ClearField("float_data")
        tensor.raw_data = np.ascontiguousarray(values).tobytes()
        self.is_changed = True


def _windows(graph: _Graph, blueprint: Blueprint) -> Iterator[str]:
    nodes = graph.nodes("GroupQueryAttention")
    if len(nodes) != len(blueprint.layers):
        if any(layer.window for layer in blueprint.layers):
            raise UnsupportedError(
                f"the built graph has no attention with a window for its {len(blueprint.layers)}"
                " layers",
                where=str(graph.folder),
            )
        return
    for node, layer in zip(nodes, blueprint.layers, strict=True):
        own = next((one for one in node.attribute if one.name == "local_window_size"), None)
        window = own.i if own is not None else -1
        if max(0, window) == layer.window:
            continue
        if own is None:
            own = node.attribute.add()
            own.name, own.type = "local_window_size", 2  # INT
        own.i = layer.window or -1
        graph.is_changed = True
        yield "the builder left out windows of attention: they are put in"


def _rotations(graph: _Graph, blueprint: Blueprint) -> Iterator[str]:
    rotations: dict[int, Rotation] = {}
    for at, layer in enumerate(blueprint.layers):
        tables = _tables_of(graph, at, len(blueprint.layers))
        if layer.turning is None or tables is None:
            continue
        rotation = rotations.setdefault(
            id(layer.turning), layer.turning.rotation(blueprint.context)
        )
        for name, expected in zip(tables, (rotation.cosines, rotation.sines), strict=True):
            yield from _table(graph, name, expected, rotation.short)


def _tables_of(graph: _Graph, layer: int, layers: int) -> tuple[str, str] | None:
    """Return the names of a layer's cosines and sines, None where they are not found."""
    attention = graph.nodes("GroupQueryAttention")
    if len(attention) == layers and len(attention[layer].input) > _TABLES[1]:
        names = [attention[layer].input[place] for place in _TABLES]
        if all(names):
            return names[0], names[1]
    turned = graph.nodes("RotaryEmbedding")
    if len(turned) == 2 * layers:
        names = [turned[2 * layer].input[place] for place in _TURNED_TABLES]
        return names[0], names[1]
    return None


def _table(graph: _Graph, name: str, expected: NDArray[np.float32], short: int) -> Iterator[str]:
    tensor = graph.initializer(name)
    if name in graph.mended:
        return
    graph.mended.add(name)
    if tensor is None:
        _check_chosen(graph, name, expected, short)
        return
    stored = graph.read(tensor)
    if stored.ndim != 2 or stored.shape[1] != expected.shape[1] or len(stored) < len(expected):
        raise ModelError(
            f"`{name}` is {list(stored.shape)}, and the source turns {list(expected.shape)}",
            where=str(graph.folder),
        )
    own = stored[: len(expected)].astype(np.float32)
    if np.abs(own - expected).max() <= _LARGEST_DIFFERENCE:
        return
    if len(stored) != len(expected):
        raise UnsupportedError(
            f"the builder turned heads otherwise than the model, over {len(stored):,} positions",
            where=str(graph.folder),
        )
    graph.write(tensor, expected.astype(stored.dtype))
    yield "the builder turned heads otherwise than the model does: its cosines and sines are put in"


def _check_chosen(graph: _Graph, name: str, expected: NDArray[np.float32], short: int) -> None:
    """See that tables chosen by the length are those of the source."""
    from onnx import numpy_helper

    maker = next((node for node in graph.nodes("If") if name in node.output), None)
    if maker is None:
        raise UnsupportedError(f"`{name}` is computed in the graph", where=str(graph.folder))
    at = list(maker.output).index(name)
    branches: Mapping[str, Any] = {one.name: one.g for one in maker.attribute}
    parts = {}
    for branch, graph_ in branches.items():
        own = graph_.node[at].attribute[0].t
        parts[branch] = numpy_helper.to_array(own, str(graph.folder)).astype(np.float32)
    pairs = ((parts["else_branch"], expected[:short]), (parts["then_branch"], expected[short:]))
    for stored, wanted in pairs:
        same = stored.shape[1:] == wanted.shape[1:] and len(stored) >= len(wanted)
        if not same or np.abs(stored[: len(wanted)] - wanted).max() > _LARGEST_DIFFERENCE:
            raise UnsupportedError(
                "the builder turned heads of long texts otherwise than the model does",
                where=str(graph.folder),
                hint="`vermilion llm generate` reads the source as it is",
            )

"""The smallest graph that still shows a fault, as text."""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from random_graphs.batches import Tried, environment
from random_graphs.growth import grow
from random_graphs.native_parts import Way
from random_graphs.reference import NotRunError, Reference, element_type, is_float
from random_graphs.trial import Outcome, try_model, way_of

Array = NDArray[Any]

_MOST_PRINTED = 16
# How long one fault may take to shrink.
_SECONDS = 60.0
# Kinds that end the process: tried in a process of their own.
_DEADLY = ("guard fault", "crashed", "hung")


@dataclass(frozen=True)
class Specimen:
    """A model that shows a fault, and the inputs on which it does."""

    model: onnx.ModelProto
    inputs: Mapping[str, Array]


Shows = Callable[[Specimen], bool]


def described(tried: Tried, seconds: float = _SECONDS) -> str:
    """Return a fault: its smallest graph as text, the seed, and the line that repeats it."""
    case, outcome = tried.case, tried.outcome
    graph = grow(case.seed, case.number_format)
    way = way_of(case.seed, case.number_format)
    lasting = Specimen(_without_constant_nodes(graph.model), graph.inputs)

    def shows(specimen: Specimen) -> bool:
        run = _in_child if outcome.kind in _DEADLY else _here
        found = run(specimen, way, case.number_format)
        same = found.kind == outcome.kind
        if outcome.kind == "raised":
            same &= found.detail.split("(")[-1] == outcome.detail.split("(")[-1]
        return same

    if outcome.kind == "raised" and not shows(lasting):  # it takes the constants where they stand
        lasting = Specimen(graph.model, graph.inputs)
    smallest = shrink(lasting, shows, seconds)
    return (
        f"seed {case.seed}, {case.number_format}, {way}\n{outcome.kind}: {outcome.detail}\n"
        f"{_text(smallest)}\nagain: {case.line}"
    )


def _text(specimen: Specimen) -> str:
    """Return the model and its inputs; of large arrays only a few numbers."""
    model = onnx.ModelProto()
    model.CopyFrom(specimen.model)
    arrays = dict(specimen.inputs)
    for tensor in list(model.graph.initializer):
        if np.prod(tensor.dims) > _MOST_PRINTED:
            arrays[tensor.name] = numpy_helper.to_array(tensor)
            model.graph.initializer.remove(tensor)
            info = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            model.graph.input.append(info)
    shown = [
        f"{name} = {np.array2string(a.reshape(-1), threshold=_MOST_PRINTED, edgeitems=4)}"
        for name, a in arrays.items()
    ]
    return "\n".join([onnx.printer.to_text(model), *shown])


def _without_constant_nodes(model: onnx.ModelProto) -> onnx.ModelProto:
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for node in [node for node in made.graph.node if node.op_type == "Constant"]:
        tensor = made.graph.initializer.add()
        tensor.CopyFrom(node.attribute[0].t)
        tensor.name = node.output[0]
        made.graph.node.remove(node)
    return made


def _here(specimen: Specimen, way: Way, number_format: str) -> Outcome:
    return try_model(specimen.model, specimen.inputs, way, number_format)


def _in_child(specimen: Specimen, way: Way, number_format: str) -> Outcome:
    """Try in a process of its own, which may end as it likes."""
    with TemporaryDirectory() as name:
        file = Path(name) / "specimen"
        file.write_bytes(
            pickle.dumps(
                (specimen.model.SerializeToString(), dict(specimen.inputs), way, number_format)
            )
        )
        command = [sys.executable, "-m", "random_graphs.shrinking", str(file)]
        try:
            done = subprocess.run(command, env=environment(), capture_output=True, timeout=60)
        except subprocess.TimeoutExpired:
            return Outcome("hung")
    if done.returncode < 0:
        is_guard = b"guarded" in done.stdout.splitlines()[-1:][0] if done.stdout else False
        return Outcome("guard fault" if is_guard else "crashed")
    return Outcome("crashed" if done.returncode else "right")


def shrink(specimen: Specimen, shows: Shows, seconds: float) -> Specimen:
    """Return a smaller model that still shows the fault."""
    until = time.monotonic() + seconds
    smaller = True
    while smaller:
        smaller = False
        for candidate in _candidates(specimen):
            if time.monotonic() > until:
                return specimen
            if _is_smaller(candidate, specimen) and shows(candidate):
                specimen, smaller = candidate, True
                break
    return specimen


def _weight(specimen: Specimen) -> tuple[int, int, float]:
    graph = specimen.model.graph
    arrays = [*specimen.inputs.values(), *(numpy_helper.to_array(t) for t in graph.initializer)]
    elements = sum(a.size for a in arrays)
    odd = sum(
        float(np.count_nonzero(np.rint(a64) != a64))
        for a64 in (a.astype(np.float64) for a in arrays)
    )
    return len(graph.node), elements + len(graph.output), odd


def _is_smaller(one: Specimen, other: Specimen) -> bool:
    return _weight(one) < _weight(other)


def _candidates(specimen: Specimen) -> Iterator[Specimen]:
    """Yield models with less in them: fewer nodes first, then sizes, then simpler values."""
    try:
        values = Reference(specimen.model, specimen.inputs).values
    except NotRunError:
        return
    nodes = list(specimen.model.graph.node)
    for output in specimen.model.graph.output:
        yield _made(specimen, nodes, values, {}, [output.name])
    for at in range(len(nodes) - 1, 0, -1):  # cut off what comes before
        given = {name: values[name] for node in nodes[:at] for name in node.output if name}
        yield _made(specimen, nodes[at:], values, given)
    for at in range(1, len(nodes)):  # and what comes after
        yield _made(specimen, nodes[:at], values, {})
    for at in range(len(nodes)):  # one node alone is taken away
        given = {name: values[name] for name in nodes[at].output if name}
        yield _made(specimen, nodes[:at] + nodes[at + 1 :], values, given)
    yield from _with_smaller_sizes(specimen)
    yield from _with_simpler_values(specimen)


def _made(
    specimen: Specimen, nodes: list[onnx.NodeProto], values: Mapping[str, Array],
    given: Mapping[str, Array], outputs: list[str] | None = None,
) -> Specimen:  # fmt: skip
    """Return a model of these nodes; what they read of `given` becomes an input or a constant."""
    old = specimen.model.graph
    written = {name for node in nodes for name in node.output if name}
    read = {name for node in nodes for name in node.input if name}
    wanted = outputs or [o.name for o in old.output if o.name in written]
    wanted += [] if outputs else sorted((written - read) - set(wanted))
    kept = _needed(nodes, set(wanted))
    read = {name for node in kept for name in node.input if name}
    weights = [t for t in old.initializer if t.name in read]
    inputs = {n: a for n, a in specimen.inputs.items() if n in read}
    for name, array in given.items():
        if name in read and name not in inputs:
            inputs[name] = np.array(array)
    model = onnx.ModelProto()
    model.CopyFrom(specimen.model)
    model.graph.CopyFrom(
        helper.make_graph(
            kept, old.name,
            [helper.make_tensor_value_info(n, element_type(a), a.shape) for n, a in inputs.items()],
            [
                helper.make_tensor_value_info(n, element_type(values[n]), values[n].shape)
                for n in wanted
            ],
            weights,
        )
    )  # fmt: skip
    return Specimen(model, inputs)


def _needed(nodes: list[onnx.NodeProto], wanted: set[str]) -> list[onnx.NodeProto]:
    kept: list[onnx.NodeProto] = []
    for node in reversed(nodes):
        if wanted & set(node.output):
            kept.insert(0, node)
            wanted |= set(node.input)
    return kept


def _with_arrays(
    specimen: Specimen, change: Callable[[str, Array], Array], shapes: Callable[[Array], Array]
) -> Specimen | None:
    """Return the model with other inputs and constants, if it still runs."""
    model = onnx.ModelProto()
    model.CopyFrom(specimen.model)
    inputs = {name: change(name, a) for name, a in specimen.inputs.items()}
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        made = shapes(array) if array.dtype == np.int64 else change(tensor.name, array)
        made = np.ascontiguousarray(made).reshape(made.shape)
        tensor.CopyFrom(numpy_helper.from_array(made, tensor.name))
    try:
        values = Reference(model, inputs).values
    except Exception:  # any way of not running makes it no candidate
        return None
    for given in model.graph.input:
        array = inputs[given.name]
        given.CopyFrom(helper.make_tensor_value_info(given.name, element_type(array), array.shape))
    for output in model.graph.output:
        array = values[output.name]
        output.CopyFrom(
            helper.make_tensor_value_info(output.name, element_type(array), array.shape)
        )
    return Specimen(model, inputs)


def _with_smaller_sizes(specimen: Specimen) -> Iterator[Specimen]:
    arrays = [
        *specimen.inputs.values(),
        *(numpy_helper.to_array(t) for t in specimen.model.graph.initializer),
    ]
    sizes = sorted({size for a in arrays for size in a.shape if size > 1}, reverse=True)
    for size in sizes:
        for less in sorted({1, size // 2, size - 1} - {0}):

            def cut(name: str, array: Array, size: int = size, less: int = less) -> Array:
                return array[tuple(slice(less if s == size else s) for s in array.shape)]

            def named(array: Array, size: int = size, less: int = less) -> Array:
                return np.where(array == size, less, array)

            made = _with_arrays(specimen, cut, named)
            if made is not None:
                yield made


def _with_simpler_values(specimen: Specimen) -> Iterator[Specimen]:
    for simple in (np.ones_like, np.rint):
        for name in specimen.inputs:

            def change(label: str, array: Array, name: str = name, simple: Any = simple) -> Array:
                is_meant = label == name and is_float(array)
                return np.asarray(simple(array), array.dtype) if is_meant else array

            made = _with_arrays(specimen, change, lambda array: array)
            if made is not None:
                yield made


if __name__ == "__main__":
    data, given, how, kind = pickle.loads(Path(sys.argv[1]).read_bytes())
    found = try_model(
        onnx.ModelProto.FromString(data), given, how, kind, lambda name: print(name, flush=True)
    )
    print(found.kind, flush=True)

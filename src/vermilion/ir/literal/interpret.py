"""The interpreter: a graph computed node by node in numpy, as the standard says.

It is the yardstick of last resort, so it is written for being right: floats are computed in
float64 and rounded once, to the type of the result; a wide run does not even do that.
"""

from __future__ import annotations

import math
import time
from collections import ChainMap, Counter
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import InlinePass

from vermilion.errors import ModelError, OptionError, UnsupportedError, VermilionError
from vermilion.ir.limits import TimeLimitError
from vermilion.ir.literal.call import Call, Held, Row, Typed
from vermilion.ir.literal.rounding import WIDENED, is_float, rounded, type_of, widened
from vermilion.ir.literal.table import find_fallback, find_row
from vermilion.ir.opset import bodies_of, is_standard, where

# As of which ONNX's own QuantizeLinear takes what ONNX Runtime's takes.
_BOTH_DOMAINS_SINCE = 21

Array = NDArray[Any]
Values = Mapping[str, Array]

# What numpy raises for shapes that do not fit, indices out of range and sizes below zero.
_WRONG_DATA = (ValueError, IndexError, KeyError, TypeError, OverflowError, ZeroDivisionError)


@dataclass(frozen=True)
class _Slot:
    """A value and its declared type; a sequence has none."""

    held: Held
    dtype: ir.DataType | None


_NOTHING = _Slot(None, None)
Scope = MutableMapping[ir.Value, _Slot]


def interpret(
    model: ir.Model,
    inputs: Values,
    outputs: Sequence[str] | None = None,
    *,
    wide: bool = False,
    seconds: float = math.inf,
) -> dict[str, Array]:
    """Return outputs by name; any value of the main graph may be asked for.

    A `wide` run holds all floats in float64 and rounds where operators say so: Cast to a smaller
    float type, QuantizeLinear, DequantizeLinear. After so many `seconds` of this thread no
    further node is begun.

    Raises: UnsupportedError for operators that it does not know, TimeLimitError among them;
    ModelError for data that an operator must not be given; OptionError for names that the graph
    does not have.
    """
    if model.functions:
        model = model.clone()
        InlinePass()(model)
    graph = model.graph
    names = [str(value.name) for value in graph.outputs] if outputs is None else list(outputs)
    runner = _Runner(model, wide, seconds)
    with np.errstate(all="ignore"):
        scope = runner.start(graph, inputs)
        wanted = _find(graph, names)
        runner.run(graph, scope, wanted)
    results = {name: scope[value] for name, value in zip(names, wanted, strict=True)}
    return {name: runner.shown(slot) for name, slot in results.items()}


def _find(graph: ir.Graph, names: Sequence[str]) -> list[ir.Value]:
    known = {
        value.name: value
        for values in (
            graph.inputs,
            graph.initializers.values(),
            *(node.outputs for node in graph),
        )
        for value in values
        if value.name
    }
    missing = [name for name in names if name not in known]
    if missing:
        raise OptionError(f"the graph has no value `{missing[0]}`", hint="check the name")
    return [known[name] for name in names]


class _Runner:
    """Runs graphs of one model; a scope holds values by the object that stands for them."""

    def __init__(self, model: ir.Model, is_wide: bool, seconds: float) -> None:
        self._seconds, self._until = seconds, time.thread_time() + seconds
        self._imports = {
            "" if domain == "ai.onnx" else domain: version
            for domain, version in model.graph.opset_imports.items()
        }
        self._is_wide = is_wide
        self._plans: dict[ir.Graph, tuple[list[ir.Node], list[list[ir.Value]]]] = {}

    def start(self, graph: ir.Graph, inputs: Values) -> Scope:
        """Return the scope that holds inputs and weights."""
        scope = self._weights(graph)
        by_name = {value.name: value for value in graph.inputs}
        for given, array in inputs.items():
            if given not in by_name:
                raise OptionError(f"the graph has no input `{given}`", hint="check the name")
            scope[by_name[given]] = self._hold(array)
        for name, value in by_name.items():
            if value not in scope and isinstance(value.type, ir.TensorType | None):
                raise OptionError(f"the input `{name}` was not given", hint="give an array for it")
        return scope

    def run(self, graph: ir.Graph, scope: Scope, wanted: Iterable[ir.Value]) -> None:
        """Compute the nodes of a graph into `scope`, what is read for the last time let go."""
        nodes, reads = self._plan(graph)
        left = Counter(value for values in reads for value in values)
        kept = set(wanted)
        for node, values in zip(nodes, reads, strict=True):
            if time.thread_time() > self._until:
                raise TimeLimitError(self._seconds)
            made = zip(node.outputs, self._compute(node, scope), strict=False)
            scope.update((v, slot) for v, slot in made if left[v] or v in kept)
            for value in values:
                left[value] -= 1
                if not left[value] and value not in kept:
                    scope.pop(value, None)

    def shown(self, slot: _Slot) -> Held:
        """Return a value as a caller gets it: a weight of a wide run is in float64 too."""
        return widened(slot.held) if self._is_wide and slot.dtype in WIDENED else slot.held

    def _plan(self, graph: ir.Graph) -> tuple[list[ir.Node], list[list[ir.Value]]]:
        """Return the nodes, and what each reads, found once for the body of a loop."""
        if graph not in self._plans:
            nodes = list(graph)
            self._plans[graph] = nodes, [_reads(node) for node in nodes]
        return self._plans[graph]

    def _weights(self, graph: ir.Graph) -> Scope:
        return {
            value: self._hold(value.const_value.numpy())
            for value in graph.initializers.values()
            if value.const_value is not None
        }

    def _hold(self, given: Held) -> _Slot:
        if given is None or isinstance(given, list):
            items = given and [self._hold(item).held for item in given]
            return _Slot(items, None)
        array = np.asarray(given)
        dtype = type_of(array)
        if array.dtype.kind in "US":
            array = array.astype(object)
        # A wide run widens where it reads: weights are not in memory twice as large for its length.
        return _Slot(array, dtype)

    def _compute(self, node: ir.Node, scope: Scope) -> list[_Slot]:
        try:
            slots = [_NOTHING if value is None else scope[value] for value in node.inputs]
        except KeyError as error:
            raise ModelError("it reads a value that nothing computes", where=where(node)) from error
        version = self._imports.get(node.domain, 1) if node.version is None else node.version
        domain = "" if is_standard(node) else node.domain
        if domain != node.domain:
            version = _BOTH_DOMAINS_SINCE
        row = find_row(domain, node.op_type, version) or find_fallback(node, version)
        if row is None:
            name = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
            raise UnsupportedError(
                f"the interpreter has no `{name}` of version {version}",
                where=where(node),
                hint="ONNX Runtime may have a kernel for it",
            )
        widens = not row.moves or (self._is_wide and any(_is_wide(slot.held) for slot in slots))
        held = tuple(_in_float64(slot.held) if widens else slot.held for slot in slots)
        types = tuple(slot.dtype for slot in slots)

        def run_graph(inner: ir.Graph, given: Sequence[Held]) -> list[Held]:
            return self._run_inner(inner, scope, given, node)

        call = Call(node, version, held, types, self._is_wide, run_graph)
        return [self._finish(result, row, types) for result in _called(row, call)]

    def _run_inner(
        self,
        graph: ir.Graph,
        outer: Scope,
        given: Sequence[Held],
        node: ir.Node,
    ) -> list[Held]:
        """Run a graph inside a node; its values end with it."""
        if len(given) != len(graph.inputs):
            raise ModelError(
                f"its body has {len(graph.inputs)} inputs and is given {len(given)}",
                where=where(node),
            )
        # What is let go inside is only what was made inside.
        scope: Scope = ChainMap(self._weights(graph), outer)
        for value, item in zip(graph.inputs, given, strict=True):
            scope[value] = item if isinstance(item, _Slot) else self._slot_of(item, value.dtype)
        self.run(graph, scope, graph.outputs)
        results: list[Held] = []
        for value in graph.outputs:
            slot = scope[value]
            results.append(slot.held if slot.dtype is None else Typed(slot.held, slot.dtype))
        return results

    def _slot_of(self, item: Held, declared: ir.DataType | None) -> _Slot:
        if isinstance(item, Typed):
            return _Slot(item.array, item.dtype)
        if not isinstance(item, np.ndarray):
            return _Slot(item, None)
        if self._is_wide and item.dtype == np.float64 and declared in WIDENED:
            return _Slot(item, declared)
        return _Slot(item, type_of(item))

    def _finish(self, result: Held, row: Row, types: Sequence[ir.DataType | None]) -> _Slot:
        """Return what a function gave as it is held: rounded to its type unless the run is wide."""
        if isinstance(result, Typed):
            dtype = result.dtype
            array = np.asarray(result.array)
        elif isinstance(result, np.ndarray | np.generic):
            array = np.asarray(result)
            dtype = type_of(array)
            if dtype == ir.DataType.DOUBLE and (self._is_wide or not row.moves):
                dtype = next((t for t in types if t is not None and t.is_floating_point()), dtype)
        else:
            return _Slot(result, None)
        if not is_float(array):
            return _Slot(array, dtype)
        if dtype in WIDENED and self._is_wide:
            return _Slot(widened(array), dtype)
        return _Slot(rounded(array, dtype), dtype)


def _called(row: Row, call: Call) -> Sequence[Held]:
    try:
        results = row.function(call)
    except VermilionError:
        raise
    except _WRONG_DATA as error:
        words = str(error).splitlines() or [type(error).__name__]
        raise call.error(f"running the operator failed: {words[0]}") from error
    except MemoryError as error:
        raise call.unsupported("its result does not fit into memory") from error
    return results if isinstance(results, tuple) else (results,)


def _is_wide(held: Held) -> bool:
    return isinstance(held, np.ndarray) and held.dtype == np.float64


def _in_float64(held: Held) -> Held:
    return widened(held) if isinstance(held, np.ndarray) else held


def _reads(node: ir.Node) -> list[ir.Value]:
    """Return the values that a node reads, those inside its graphs too."""
    found = [value for value in node.inputs if value is not None]
    waiting = list(bodies_of(node))
    while waiting:
        graph = waiting.pop()
        found.extend(graph.outputs)
        for inner in graph:
            found.extend(value for value in inner.inputs if value is not None)
            waiting.extend(bodies_of(inner))
    return found

"""A graph while it grows: nodes, constants and inputs, and the value of everything in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from random_graphs.reference import (
    BFLOAT16,
    NodeRunner,
    NotRunError,
    element_type,
    ir_version,
    is_float,
)

Array = NDArray[Any]

FORMATS = ("fp32", "bf16", "int8", "fp16", "bf16-model")
_STORED = {"fp16": np.dtype(np.float16), "bf16-model": BFLOAT16}
SIZES = (1, 1, 2, 2, 3, 3, 4, 5, 7, 8, 13, 16, 17, 31, 33, 65)
MOST_ELEMENTS = 16_384
# What may be read further: beyond it chains only overflow.
_LARGEST = {"fp16": 200.0, "bf16-model": 1e3}


class IllegalError(Exception):
    """A builder has made a node that is not legal here, or has no size that fits."""


@dataclass(eq=False)
class Value:
    """A tensor of the graph, and what it holds for the inputs that were drawn with it."""

    name: str
    array: Array
    is_constant: bool = False
    is_tame: bool = True  # may be read further
    readers: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def rank(self) -> int:
        return self.array.ndim


@dataclass
class GraphWriter:
    """Draws everything from `random`. `number_format` is one of FORMATS."""

    random: np.random.Generator
    opset: int
    number_format: str
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, Array] = field(default_factory=dict)
    inputs: dict[str, Array] = field(default_factory=dict)
    values: list[Value] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    quantize_after: Callable[[GraphWriter, Value], Value] | None = None
    _count: int = 0

    # Draws ------------------------------------------------------------------------------------

    def maybe(self, chance: float) -> bool:
        return bool(self.random.random() < chance)

    def whole(self, low: int, high: int) -> int:
        """Draw an integer, `high` included."""
        return int(self.random.integers(low, high + 1))

    def one_of(self, choices: Sequence[Any]) -> Any:
        return choices[int(self.random.integers(len(choices)))]

    def size(self, most: int = 65) -> int:
        return int(self.one_of([s for s in SIZES if s <= most]))

    def shape(self, rank: int, most: int = 65) -> tuple[int, ...]:
        sizes = [self.size(most) for _ in range(rank)]
        while np.prod(sizes, dtype=np.int64) > MOST_ELEMENTS:
            at = int(np.argmax(sizes))
            sizes[at] = max(1, sizes[at] // 2)
        return tuple(sizes)

    @property
    def float_type(self) -> np.dtype[Any]:
        return _STORED.get(self.number_format, np.dtype(np.float32))

    def floats(self, shape: Sequence[int], scale: float = 1.0) -> Array:
        """Draw ordinary numbers, or at times small integers, equal ones, zeros, large ones."""
        kind = self.random.random()
        made = self.random.standard_normal(tuple(shape)) * scale
        if kind < 0.08:
            made = np.rint(made * 3)
        elif kind < 0.11:
            made = np.full(shape, float(self.random.integers(-2, 3)))
        elif kind < 0.15:
            made = made * (self.random.random(tuple(shape)) < 0.5)
        elif kind < 0.18:
            made = made * 30.0
        elif kind < 0.21:
            made = made * 1e-3
        return np.asarray(made, self.float_type)

    def special(self, array: Array) -> Array:
        """Put NaN, infinities, both zeros and subnormal numbers at a few places."""
        found = np.array(array)
        if found.size:
            for value in (np.nan, np.inf, -np.inf, -0.0, 1e-40):
                found.reshape(-1)[self.whole(0, found.size - 1)] = value
        return found

    def integers(self, shape: Sequence[int], dtype: Any, low: int = -9, high: int = 9) -> Array:
        info = np.iinfo(dtype)
        low, high = max(low, info.min), min(high, info.max)
        return np.asarray(self.random.integers(low, high + 1, tuple(shape)), dtype)

    # Values -----------------------------------------------------------------------------------

    def _name(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def input(self, array: Array) -> Value:
        name = self._name("x")
        self.inputs[name] = np.asarray(array)
        value = Value(name, self.inputs[name])
        self.values.append(value)
        return value

    def constant(self, array: Array) -> Value:
        """Add a constant: mostly an initializer, at times one that is there, or a node."""
        made = np.asarray(array)
        if self.maybe(0.3):
            for name, known in self.weights.items():
                same = (known.shape, known.dtype) == (made.shape, made.dtype)
                if same and known.tobytes() == made.tobytes():
                    return Value(name, known, is_constant=True)
        name = self._name("w")
        if self.maybe(0.15) and (self.opset >= 9 or is_float(made)):
            tensor = numpy_helper.from_array(np.ascontiguousarray(made).reshape(made.shape), name)
            self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        else:
            self.weights[name] = made
        return Value(name, made, is_constant=True)

    def number(self, value: float) -> Value:
        return self.constant(np.array(value, self.float_type))

    def ints(self, values: Sequence[int]) -> Value:
        return self.constant(np.array(list(values), np.int64))

    def new(self, shape: Sequence[int], dtype: Any = None) -> Value:
        """Make a new input of ordinary floats, or of small integers or booleans."""
        if dtype is None or np.dtype(dtype) == self.float_type:
            return self.input(self.floats(shape))
        if np.dtype(dtype) == np.bool_:
            return self.input(self.random.random(tuple(shape)) < 0.5)
        return self.input(self.integers(shape, dtype))

    def take(
        self, fits: Callable[[Value], bool], make: Callable[[], Value], fresh: float = 0.25
    ) -> Value:
        """Return a value of the graph that fits, the later the likelier, or a new one."""
        known = [v for v in self.values if v.is_tame and v.array.size and fits(v)]
        if not known or self.maybe(fresh):
            return make()
        at = len(known) - 1 - min(int(self.random.exponential(2.0)), len(known) - 1)
        return known[at]

    def float_value(self, *ranks: int, most: int = 65) -> Value:
        """Return floats of one of these ranks; of any from 0 to 5 where none is named."""

        def fits(value: Value) -> bool:
            return value.array.dtype == self.float_type and (not ranks or value.rank in ranks)

        choice = ranks or (0, 1, 2, 2, 3, 3, 4, 4, 5)
        return self.take(fits, lambda: self.new(self.shape(self.one_of(choice), most)))

    # Nodes ------------------------------------------------------------------------------------

    def op(self, op_type: str, *inputs: Value | None, **attributes: Any) -> Value:
        """Write a node with one result; return it. Raises: IllegalError where it does not run."""
        return self.ops(op_type, 1, *inputs, **attributes)[0]

    def ops(
        self, op_type: str, results: int | Sequence[bool], *inputs: Value | None, **attributes: Any
    ) -> list[Value]:
        """Write a node; `results` is how many it has, or which of them are wanted."""
        wanted = [True] * results if isinstance(results, int) else list(results)
        outputs = [self._name("v") if is_wanted else "" for is_wanted in wanted]
        names = [value.name if value is not None else "" for value in inputs]
        node = helper.make_node(op_type, names, outputs, name=f"n{self._count}", **attributes)
        given = [value.array if value is not None else None for value in inputs]
        try:
            arrays = NodeRunner(node, self.opset, given).run(given)
        except NotRunError as error:
            self.refused.append(str(error))
            raise IllegalError(str(error)) from error
        if any(array.size == 0 or array.size > 4 * MOST_ELEMENTS for array in arrays):
            raise IllegalError(f"{op_type} gives nothing, or too much")
        self.nodes.append(node)
        for value in inputs:
            if value is not None:
                value.readers += 1
        made = [
            Value(name, array, is_tame=self._is_tame(array))
            for name, array in zip([o for o in outputs if o], arrays, strict=True)
        ]
        self.values += made
        return made

    def _is_tame(self, array: Array) -> bool:
        if not is_float(array):
            return True
        largest = _LARGEST.get(self.number_format, 1e4)
        wide = array.astype(np.float32)
        return bool(np.isfinite(wide).all() and np.abs(wide).max(initial=0.0) <= largest)

    def settled(self, value: Value) -> Value:
        """Return the value between QuantizeLinear and DequantizeLinear, in a quantized graph."""
        if self.quantize_after is None or not is_float(value.array) or not value.is_tame:
            return value
        return self.quantize_after(self, value)

    def _idle_outputs(self) -> list[Value]:
        """Return, at times, an input or a constant: outputs that nothing computes."""
        if self.maybe(0.04):
            read = {name for node in self.nodes for name in node.input}
            known = {n: a for n, a in {**self.inputs, **self.weights}.items() if n in read}
            return [Value(name, known[name]) for name in list(known)[:1]]
        return []

    # The model --------------------------------------------------------------------------------

    def model(self) -> onnx.ModelProto:
        """Return the model; its outputs are all that nobody reads, and some that somebody does."""
        made = [v for v in self.values if v.name not in self.inputs]
        outputs = [v for v in made if not v.readers or self.maybe(0.12)]
        outputs += self._idle_outputs()
        read = {name for node in self.nodes for name in node.input}
        written = {name for node in self.nodes for name in node.output}
        graph = helper.make_graph(
            self.nodes, "random",
            [
                helper.make_tensor_value_info(n, element_type(a), a.shape)
                for n, a in self.inputs.items() if n in read
            ],
            [
                helper.make_tensor_value_info(v.name, element_type(v.array), v.shape)
                for v in outputs
            ],
            [
                numpy_helper.from_array(np.ascontiguousarray(a).reshape(a.shape), n)
                for n, a in self.weights.items() if n in read
            ],
        )  # fmt: skip
        assert read <= written | set(self.inputs) | set(self.weights) | {""}
        self.inputs = {n: a for n, a in self.inputs.items() if n in read}
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", self.opset)],
            ir_version=ir_version(self.opset),
        )  # fmt: skip

"""Graphs of whatever the standard's schemas allow; a node is taken where ONNX Runtime runs it.

`growth` builds what its builders know. Here an operator, its attributes, types and shapes are drawn
from the schema of an opset, with little more known than how the parts of a product must fit: most
draws are refused, and what is left are forms that nobody thought of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import defs, helper, numpy_helper

from random_graphs.reference import NodeRunner, NotRunError, ir_version
from random_graphs.schema_numbers import NUMBERS, shape_beside

Array = NDArray[Any]
Attributes = dict[str, Any]

OPSETS = (7, *range(9, 26))
_TYPES: Mapping[str, Any] = {
    "tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_, "tensor(uint8)": np.uint8, "tensor(int8)": np.int8,
    "tensor(float16)": np.float16, "tensor(double)": np.float64,
}  # fmt: skip
_TYPE_OF = {np.dtype(kind): name for name, kind in _TYPES.items()}
# Random, with bodies, of sequences or strings, or of training.
_SKIPPED = frozenset(
    {
        "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial",
        "Bernoulli", "If", "Loop", "Scan", "SequenceMap", "Constant", "Dropout", "ImageDecoder",
        "BitCast",
    }
)  # fmt: skip
_WORDS: Mapping[str, tuple[str, ...]] = {
    "auto_pad": ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"),
    "direction": ("forward", "reverse", "bidirectional", "LEFT", "RIGHT"),
    "mode": (
        "nearest", "linear", "cubic", "constant", "reflect", "edge", "wrap", "DCR", "CRD",
        "bilinear", "bicubic",
    ),
    "reduction": ("none", "add", "mul", "max", "min", "mean", "sum"),
    "nearest_mode": ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil"),
    "coordinate_transformation_mode": (
        "half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric",
    ),
    "padding_mode": ("zeros", "border", "reflection"),
    "approximate": ("none", "tanh"),
    "equation": ("ij,jk->ik", "ij->ji", "bij,bjk->bik", "ij,ij->i", "ii->i", "i,j->ij", "ij->"),
    "keep_aspect_ratio_policy": ("stretch", "not_larger", "not_smaller"),
}  # fmt: skip
_MOST_ELEMENTS = 20_000
_LARGEST = 1e5


class SchemaGrower:
    """A graph while it grows: arrays by name, which of them are inputs or weights, nodes."""

    def __init__(self, random: np.random.Generator) -> None:
        self._random = random
        self.opset = int(random.choice(OPSETS))
        self._schemas = _schemas_of(self.opset)
        self._names = sorted(self._schemas)
        self._sides = [int(side) for side in random.choice([1, 2, 3, 4, 5, 7, 8, 9, 16, 17], 3)]
        self.values: dict[str, Array] = {}
        self._inputs: list[str] = []
        self._weights: list[str] = []
        self.nodes: list[onnx.NodeProto] = []
        self._count = 0

    def maybe(self, share: float) -> bool:
        """Draw yes or no."""
        return bool(self._random.random() < share)

    def side(self) -> int:
        """Draw a size, often one that others have."""
        return int(
            self._random.choice(self._sides) if self.maybe(0.6) else self._random.integers(1, 9)
        )

    def shape(self) -> tuple[int, ...]:
        """Draw a shape."""
        rank = int(self._random.choice(6, p=[0.05, 0.12, 0.25, 0.25, 0.28, 0.05]))
        return tuple(self.side() for _ in range(rank))

    def _array(self, kind: np.dtype[Any], shape: tuple[int, ...]) -> Array:
        random = self._random
        if kind.kind == "f":
            scale = random.choice([1.0, 10.0, 0.1], p=[0.8, 0.1, 0.1])
            return np.asarray(random.standard_normal(shape) * scale, kind)
        if kind.kind == "b":
            return np.asarray(random.random(shape) < 0.5)
        return np.asarray(random.integers(0 if kind.kind == "u" else -4, 9, shape), kind)

    def _given(self, array: Array, *, constant: bool) -> str:
        self._count += 1
        name = f"given{self._count}"
        (self._weights if constant else self._inputs).append(name)
        self.values[name] = array
        return name

    def _fresh(self, kind: np.dtype[Any], shape: tuple[int, ...], share: float = 0.4) -> str:
        """Return a new input, or a weight; integers are weights, which may be places and sizes."""
        return self._given(self._array(kind, shape), constant=kind.kind != "f" or self.maybe(share))

    def grow(self) -> None:
        """Draw one operator; leave all as it was where it is not taken."""
        schema = self._schemas[str(self._random.choice(self._names))]
        before = len(self._inputs), len(self._weights)
        operands, attributes = self._drawn(schema)
        if operands is not None and self._is_taken(schema, operands, attributes):
            return
        for names, count in zip((self._inputs, self._weights), before, strict=True):
            for name in names[count:]:
                del self.values[name]
            del names[count:]

    def _drawn(self, schema: defs.OpSchema) -> tuple[list[str] | None, Attributes]:
        allowed = {
            one.type_param_str: [kind for kind in one.allowed_type_strs if kind in _TYPES]
            for one in schema.type_constraints
        }
        bound: dict[str, str] = {}
        operands: list[str] = []
        attributes: Attributes = {}
        for at, formal in enumerate(schema.inputs):
            option = str(formal.option).rsplit(".", maxsplit=1)[-1]
            if option == "Optional" and self.maybe(0.45):
                operands.append("")
                continue
            for _ in range(int(self._random.integers(1, 4)) if option == "Variadic" else 1):
                kinds = allowed.get(formal.type_str, [formal.type_str])
                kinds = [bound.get(formal.type_str, "")] if formal.type_str in bound else kinds
                kinds = [kind for kind in kinds if kind in _TYPES]
                if not kinds:
                    return None, attributes
                first = self.values.get(operands[0]) if operands else None
                operands.append(self._operand(schema.name, at, kinds, first, attributes))
                bound[formal.type_str] = _TYPE_OF[self.values[operands[-1]].dtype]
                if len(operands) == 1:
                    attributes.update(self._attributes(schema, self.values[operands[0]]))
        if not schema.inputs:
            attributes.update(self._attributes(schema, np.zeros((2, 2))))
        return operands, attributes

    def _operand(
        self, operator: str, at: int, kinds: list[str], first: Array | None, attributes: Attributes
    ) -> str:
        random = self._random
        numbers = NUMBERS.get((operator, at))
        if numbers is not None:
            kind = "tensor(int64)" if "tensor(int64)" in kinds else str(random.choice(kinds))
            array = np.asarray(numbers(random, first), _TYPES[kind])
            return self._given(array, constant=True)
        kind = str(random.choice(kinds))
        if "tensor(float)" in kinds and self.maybe(0.85):
            kind = "tensor(float)"
        dtype = np.dtype(_TYPES[kind])
        if first is not None:
            shape = shape_beside(random, operator, at, first, attributes)
            if shape is not None:
                return self._fresh(dtype, shape, 0.7)
            alike = [
                n for n, a in self.values.items() if a.dtype == dtype and a.shape == first.shape
            ]
            if alike and self.maybe(0.5):
                return str(random.choice(alike))
            stretched = tuple(1 if self.maybe(0.4) else size for size in first.shape)
            shapes = [first.shape, first.shape[-1:], (), stretched]
            return self._fresh(dtype, shapes[int(random.integers(4))])
        made = [name for node in self.nodes[-6:] for name in node.output if name]
        fitting = [name for name in made if _TYPE_OF[self.values[name].dtype] in kinds]
        if fitting and self.maybe(0.8):
            return str(random.choice(fitting))
        return self._fresh(dtype, self.shape())

    def _attributes(self, schema: defs.OpSchema, first: Array) -> Attributes:
        drawn = {
            name: self._attribute(name, one, first)
            for name, one in schema.attributes.items()
            if one.required or self.maybe(0.45)
        }
        return {name: value for name, value in drawn.items() if value is not None}

    def _attribute(self, name: str, one: defs.OpSchema.Attribute, first: Array) -> Any:
        random, rank = self._random, max(first.ndim, 1)
        sides = max(rank - 2, 0)
        several: dict[str, Callable[[], Any]] = {
            "perm": lambda: random.permutation(rank),
            "axes": lambda: (
                random.permutation(rank)[: random.integers(1, rank + 1)]
                - (rank if self.maybe(0.4) else 0)
            ),
            "pads": lambda: random.choice([0, 0, 1, 1, 2], 2 * (sides or rank)),
            "kernel_shape": lambda: random.choice([1, 2, 3], sides),
            "strides": lambda: random.choice([1, 2, 3], sides),
            "dilations": lambda: random.choice([1, 1, 2], sides),
            "output_padding": lambda: random.choice([0, 0, 1], sides),
        }
        single: dict[str, Callable[[], Any]] = {
            "axis": lambda: random.integers(-rank, rank),
            "to": lambda: random.choice([1, 6, 7, 9, 10, 11, 2, 3]),
            "dtype": lambda: random.choice([1, 6, 7, 9, 11]),
            "group": lambda: random.choice([1, 1, 2, 3, first.shape[1] if rank > 1 else 1]),
            "hidden_size": lambda: random.choice([3, 4, 8]),
            "blocksize": lambda: 2,
            **dict.fromkeys(
                ("num_groups", "num_outputs", "q_num_heads", "kv_num_heads"),
                lambda: random.integers(1, 5),
            ),
        }
        match str(one.type).rsplit(".", maxsplit=1)[-1]:
            case "INT":
                return int(single.get(name, lambda: random.choice([0, 1, 1]))())
            case "INTS":
                other = lambda: random.integers(0, 4, max(sides, 1))  # noqa: E731
                return [int(number) for number in several.get(name, other)()]
            case "FLOAT":
                return float(random.choice([0.1, 0.5, 1.0, 2.0, 0.01, 1e-5, -0.5, 0.0]))
            case "FLOATS":
                return [float(random.choice([0.5, 1.0, 2.0]))] * int(random.integers(1, 4))
            case "STRING":
                return str(random.choice(_WORDS.get(name, ("none",))))
            case "TENSOR":
                kind = random.choice([np.float32, np.int64, np.int32])
                return numpy_helper.from_array(self._array(np.dtype(kind), (1,)))
        return None

    def _is_taken(self, schema: defs.OpSchema, operands: list[str], attributes: Attributes) -> bool:
        while operands and not operands[-1]:
            operands.pop()
        self._count += 1
        results = []
        for at, formal in enumerate(schema.outputs):
            option = str(formal.option).rsplit(".", maxsplit=1)[-1]
            count = int(self._random.integers(1, 4)) if option == "Variadic" else 1
            names = [f"value{self._count}_{at}_{number}" for number in range(count)]
            results += [""] if option == "Optional" and self.maybe(0.5) else names
        if schema.name == "BatchNormalization":  # more of them are those of training
            results, attributes = (
                results[:1],
                {name: value for name, value in attributes.items() if name == "epsilon"},
            )
        while results and not results[-1]:
            results.pop()
        try:
            node = helper.make_node(
                schema.name, operands, results, name=f"node{self._count}", **attributes
            )
            given = [self.values[name] if name else None for name in operands]
            arrays = NodeRunner(node, self.opset, given).run(given)
        except (NotRunError, ValueError, TypeError, KeyError):
            return False
        named = [name for name in results if name]
        if len(arrays) != len(named) or not all(map(self._is_sound, arrays)):
            return False
        self.values.update(zip(named, arrays, strict=True))
        self.nodes.append(node)
        return True

    def _is_sound(self, array: Array) -> bool:
        if not isinstance(array, np.ndarray) or array.dtype not in _TYPE_OF:
            return False
        if not 0 < array.size <= _MOST_ELEMENTS:
            return False
        if array.dtype.kind != "f":
            return True
        size = np.abs(array.astype(np.float64))
        return bool(np.isfinite(size).all() and size.max() <= _LARGEST)

    def model(self) -> onnx.ModelProto:
        """Return the graph; what nobody reads is its output."""
        read = {name for node in self.nodes for name in node.input}
        made = [name for node in self.nodes for name in node.output if name]

        def information(name: str) -> onnx.ValueInfoProto:
            array = self.values[name]
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            return helper.make_tensor_value_info(name, kind, array.shape)

        graph = helper.make_graph(
            self.nodes, "schemas", [information(name) for name in self.inputs],
            [information(name) for name in made if name not in read],
            [numpy_helper.from_array(self.values[n], n) for n in self._weights if n in read],
        )  # fmt: skip
        opset = helper.make_opsetid("", self.opset)
        return helper.make_model(graph, opset_imports=[opset], ir_version=ir_version(self.opset))

    @property
    def inputs(self) -> dict[str, Array]:
        """Return the inputs that are read."""
        read = {name for node in self.nodes for name in node.input}
        return {name: self.values[name] for name in self._inputs if name in read}


def _schemas_of(opset: int) -> dict[str, defs.OpSchema]:
    """Return the schemas of an opset by name, those of which no type is known left out."""
    found: dict[str, defs.OpSchema] = {}
    for schema in defs.get_all_schemas_with_history():
        if schema.domain or schema.since_version > opset or schema.name in _SKIPPED:
            continue
        if schema.name not in found or found[schema.name].since_version < schema.since_version:
            found[schema.name] = schema
    return {name: schema for name, schema in found.items() if not schema.deprecated}

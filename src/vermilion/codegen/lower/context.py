"""The state of lowering one part: what each value has become, and the steps so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.codegen.emit.arithmetic import KIND_OF_STORAGE
from vermilion.codegen.emit.fill import BorderSpec, SizesSpec
from vermilion.codegen.emit.interleave import interleave_step
from vermilion.codegen.emit.map import map_step
from vermilion.codegen.isa import Isa
from vermilion.codegen.kernel import Step
from vermilion.codegen.lower.dequantized import dequantized_constant
from vermilion.codegen.lower.groups import Attention, Group
from vermilion.codegen.tensor import (
    STORAGE_BYTES,
    Storage,
    View,
    allocate,
    weight,
)
from vermilion.errors import UnsupportedError
from vermilion.ir.cost import node_cost
from vermilion.ir.expression import Convert, Expression, Operand
from vermilion.ir.opset import is_operator, static_shape
from vermilion.ir.symbolic import is_known, is_one, known_value, larger

FloatStorage = Literal["f32", "bf16"]
Array = NDArray[Any]

CHANNELS_LAST = (0, 2, 3, 1)

STORAGE_OF: Mapping[ir.DataType, Storage] = {
    ir.DataType.FLOAT: "f32",
    ir.DataType.BFLOAT16: "bf16",
    ir.DataType.FLOAT16: "f16",
    ir.DataType.UINT8: "u8",
    ir.DataType.INT8: "s8",
    ir.DataType.UINT16: "u16",
    ir.DataType.INT16: "s16",
    ir.DataType.INT32: "i32",
    ir.DataType.INT64: "i64",
    ir.DataType.BOOL: "bool",
}


@dataclass(frozen=True)
class Border:
    """Pixels of border around an image, and the byte that fills them."""

    top: int = 0
    left: int = 0
    bottom: int = 0
    right: int = 0
    byte: int = 0

    def joined(self, other: Border) -> Border:
        """Return a border that is enough for both."""
        return Border(
            larger(self.top, other.top),
            larger(self.left, other.left),
            larger(self.bottom, other.bottom),
            larger(self.right, other.right),
            self.byte,
        )

    @property
    def is_empty(self) -> bool:
        """Whether there is no border."""
        return not (self.top or self.left or self.bottom or self.right)


@dataclass
class Lowering:
    """Values by name as views, borders wanted by readers, and the steps in order.

    `demand` is how a lowering gets its inputs: elementwise nodes and products are only written when
    somebody reads their result.
    """

    isa: Isa
    float_storage: FloatStorage
    groups: Mapping[ir.Node, Group]
    borders: dict[str, Border]
    emit_group: Callable[[Lowering, Group], None]
    winograd: bool = True
    attentions: Mapping[ir.Node, Attention] = field(default_factory=dict)
    views: dict[str, View] = field(default_factory=dict)
    # Weights as stored, by name and what was done to them, so that each is packed once.
    packed: dict[tuple[str, ...], View] = field(default_factory=dict)
    # Sums of a product's left side, by that side: several products may share them.
    left_sums: dict[tuple[View, str], View] = field(default_factory=dict)
    # Nodes whose indices or divisors a step looks at.
    checked: set[ir.Node] = field(default_factory=set)
    steps: list[Step] = field(default_factory=list)
    # Values that are stored as float32 whatever the precision is.
    always_f32: frozenset[str] = frozenset()
    # What steps that are added now are run for: 1, or a size that is 0 where they are left out.
    only_if: int = 1

    def storage(self, value: ir.Value) -> Storage:
        """Return how a value is stored in this program: floats in the precision asked for."""
        assert value.dtype is not None, f"{value.name} has no type"
        storage = STORAGE_OF[value.dtype]
        if storage == "f32" and value.name not in self.always_f32:
            return self.float_storage
        return storage

    def result_storage(self, value: ir.Value) -> Storage:
        """Return how a value is stored that a kernel has in float32: as it is where it leaves."""
        is_final = value.is_graph_output() and not value.uses()
        return "f32" if is_final and value.dtype == ir.DataType.FLOAT else self.storage(value)

    def demand(self, value: ir.Value) -> View:
        """Return the view of a value, computing it first if nobody did."""
        name = str(value.name)
        if name in self.views:
            return self.views[name]
        numbers = known_value(name)
        if numbers is not None:
            self.views[name] = self._of_sizes(value, numbers)
            return self.views[name]
        constant = dequantized_constant(value)
        if constant is not None:
            self.views[name] = self._constant(name, constant, value)
            return self.views[name]
        producer = value.producer()
        assert producer is not None, f"{name} is neither input nor result"
        assert producer in self.groups, f"{name} was not computed"
        self._emit_in_order(self.groups[producer])
        return self.views[name]

    def _emit_in_order(self, last: Group) -> None:
        """Write a group, and before it all that it reads: by a stack, for chains of any length."""
        pending, entered = [last], set[int]()
        while pending:
            group = pending[-1]
            if id(group) not in entered:
                entered.add(id(group))
                pending.extend(reversed([g for g in self._read_groups(group) if g is not group]))
                continue
            pending.pop()
            if str(group.root.outputs[0].name) not in self.views:
                self.emit_group(self, group)

    def _read_groups(self, group: Group) -> Iterator[Group]:
        """Yield the groups whose results a group reads and that nobody has written yet."""
        attention = None if group.anchor is None else self.attentions.get(group.anchor)
        inner = [group] if attention is None else [attention.scores, group]
        for one in inner:
            for node in (*([one.anchor] if one.anchor else ()), *one.nodes):
                for value in node.inputs:
                    producer = None if value is None else value.producer()
                    if is_operator(producer, "DequantizeLinear") and producer not in one.members:
                        # A dequantized tensor is not read from memory: its integers are.
                        value = producer.inputs[0] if producer is not None else None
                        producer = None if value is None else value.producer()
                    if value is None or producer is None or producer in one.members:
                        continue
                    if attention and attention.weights and producer in attention.weights.members:
                        continue
                    if producer in self.groups and str(value.name) not in self.views:
                        yield self.groups[producer]

    def _constant(self, name: str, array: Array, value: ir.Value) -> View:
        storage = self.storage(value)
        if storage == "bf16" and array.dtype == np.float32:
            import ml_dtypes

            array = array.astype(ml_dtypes.bfloat16)
        return weight(name, array, storage)

    def _of_sizes(self, value: ir.Value, numbers: Array) -> View:
        """Return whole numbers that follow from sizes as a tensor."""
        if all(map(is_known, numbers.reshape(-1))):  # what was compared, and came out one way
            assert value.dtype is not None, "numbers have a type"
            array = numbers.astype(value.dtype.numpy())
            return weight(str(value.name), array, self.storage(value))
        view = allocate(str(value.name), self.storage(value), numbers.shape)
        assert view.storage in ("i32", "i64"), "sizes are whole numbers"
        spec = SizesSpec(view.storage, tuple(numbers.reshape(-1)))
        self.add(Step(spec, (view,), (view,), (str(value.name),)))
        return view

    def weight(
        self,
        key: tuple[str, ...],
        make: Callable[[], Array],
        storage: Storage,
        *,
        by_channel: bool = False,
    ) -> View:
        """Return a constant made from others, once for each key."""
        if by_channel:
            key = (*key, "by channel")
        if key not in self.packed:
            self.packed[key] = weight("/".join(key), make(), storage, by_channel=by_channel)
        return self.packed[key]

    def add(self, step: Step) -> None:
        """Append a step."""
        self.steps.append(step if is_one(self.only_if) else replace(step, only_if=self.only_if))

    @contextmanager
    def only(self, condition: int) -> Iterator[None]:
        """Have the steps that are added run only where a size is 1, and left out where it is 0."""
        before, self.only_if = self.only_if, self.only_if * condition
        try:
            yield
        finally:
            self.only_if = before

    def output(
        self, value: ir.Value, order: Sequence[int] | None = None, storage: Storage | None = None
    ) -> View:
        """Allocate a node's result, with the border that its readers want, and register it."""
        shape = static_shape(value)
        assert shape is not None, f"{value.name} has no fixed shape"
        name = str(value.name)
        border = self.borders.get(name)
        kind = storage or self.storage(value)
        if border is not None and not border.is_empty and len(shape) == 4:
            view = self.bordered(name, kind, shape, border)
        else:
            view = allocate(name, kind, shape, order)
        self.views[name] = view
        return view

    def bordered(
        self,
        name: str,
        storage: Storage,
        shape: Sequence[int],
        border: Border,
        byte: View | None = None,
    ) -> View:
        """Allocate images, channels last, inside a border; write the border; give the inside.

        `byte` is what fills the border where only a run has it.
        """
        n, c, h, w = shape
        height, width = h + border.top + border.bottom, w + border.left + border.right
        whole = allocate(name, storage, (n, c, height, width), CHANNELS_LAST)
        spec = BorderSpec(
            n, height, width, c * STORAGE_BYTES[storage],
            border.top, border.bottom, border.left, border.right, border.byte, byte is not None,
        )  # fmt: skip
        arguments = (whole,) if byte is None else (whole, byte)
        self.add(Step(spec, arguments, (whole,), (f"border of {name}",)))
        return whole.sliced(2, border.top, h).sliced(3, border.left, w)

    def channels_last(
        self, value: ir.Value, border: Border, storage: Storage | None = None
    ) -> View:
        """Return a 4-D value with channels last and at least this border around it.

        Where it lies otherwise, or is of another type than `storage`, it is copied.
        """
        view = self.demand(value)
        n, c, h, w = view.shape
        kind = storage or view.storage
        if view.storage == kind and (view.strides[1] == 1 or c == 1):
            have = border_of(view)
            fits = (
                have.top >= border.top and have.left >= border.left
                and have.bottom >= border.bottom and have.right >= border.right
            )  # fmt: skip
            if border.is_empty or (fits and self._is_filled(str(value.name), border)):
                return view
        copy = self.bordered(f"{value.name} channels last", kind, (n, c, h, w), border)
        self.add(copy_step(view, copy, f"copy of {value.name}"))
        return copy

    def _is_filled(self, name: str, border: Border) -> bool:
        """Say whether the value's own border is filled with this byte."""
        own = self.borders.get(name)
        return own is not None and own.byte == border.byte

    def contiguous(self, value: ir.Value) -> View:
        """Return a value in row-major order, copied where it lies otherwise."""
        view = self.demand(value)
        if view.is_contiguous:
            return view
        copy = allocate(f"{value.name} in order", view.storage, view.shape)
        self.add(map_step([view], [copy], [identity(view)], [f"copy of {value.name}"]))
        return copy

    def copied(
        self, view: View, order: Sequence[int] | None = None, storage: Storage | None = None
    ) -> View:
        """Return a fresh copy of a view, laid out in `order`, row-major by default."""
        label = f"copy of {view.buffer.name}"
        copy = allocate(label, storage or view.storage, view.shape, order)
        self.add(map_step([view], [copy], [converted(view, copy)], [label]))
        return copy

    def copy_into(self, source: View, target: View, node: ir.Node) -> None:
        """Copy, converting the storage type where they differ."""
        expression = converted(source, target)
        self.add(map_step([source], [target], [expression], [str(node.name)]))


def copy_step(view: View, target: View, label: str) -> Step:
    """Return the step that copies an image, whatever way it lies."""
    woven = interleave_step(view, target, (label,))
    return woven or map_step([view], [target], [converted(view, target)], [label])


def identity(view: View) -> Expression:
    """Return the expression that passes a tensor through."""
    return Operand(0, KIND_OF_STORAGE[view.storage])


def converted(source: View, target: View) -> Expression:
    """Return the expression that copies `source` to the storage type of `target`."""
    kind = KIND_OF_STORAGE[target.storage]
    expression = identity(source)
    return expression if KIND_OF_STORAGE[source.storage] == kind else Convert(expression, kind)


def border_of(view: View) -> Border:
    """Return the border that an image has in its buffer, reading it off strides and offset."""
    n, c, h, w = view.shape
    pixel = c
    if view.strides[3] != pixel or view.strides[1] != 1:
        return Border()
    row = view.strides[2]
    width = row // pixel
    if row % pixel or width < w:
        return Border()
    items = view.buffer.size_bytes // view.item_bytes
    image = view.strides[0] if n > 1 else items
    if image % row:
        return Border()
    height = image // row
    left, top = (view.offset % row) // pixel, view.offset // row
    if view.offset % pixel or top + h > height or left + w > width:
        return Border()
    return Border(top, left, height - h - top, width - w - left)


def key_of(node: ir.Node) -> str:
    """Return what no other node has: nodes may have no names, or the same ones."""
    return "/".join(str(value.name) for value in node.outputs)


def operations_of(nodes: Sequence[ir.Node]) -> int:
    """Return the operations of some nodes, by the operator table."""
    return sum(node_cost(node).operations for node in nodes)


def refuse(node: ir.Node, reason: str) -> UnsupportedError:
    """Return the error for a node that a claim should have kept out."""
    return UnsupportedError(
        f"`{node.op_type}` cannot be generated here: {reason}", where=f"node `{node.name}`"
    )

"""ConvInteger: a convolution of 8-bit integers, exact in int32 (`integer_operators`).

A border holds the zero point of the images, which only the run may have: then it is read from
memory. DynamicQuantizeLinear writes its codes inside of the border that their readers want.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.codegen.emit.map import map_step
from vermilion.codegen.lower import product
from vermilion.codegen.lower.context import Border, Lowering, border_of, identity
from vermilion.codegen.lower.geometry import (
    ConvGeometry,
    as_image,
    channels_last_order,
    conv_geometry,
)
from vermilion.codegen.lower.grouped import depthwise_step, group_steps, is_depthwise
from vermilion.codegen.lower.groups import Group
from vermilion.codegen.lower.integer_operators import (
    EXACT_FLOAT,
    HIGHER,
    IntegerOperator,
    Numbers,
    check_bytes,
    zero_shape,
)
from vermilion.codegen.lower.integer_product import with_initial
from vermilion.codegen.tensor import View, allocate
from vermilion.ir.expression import Convert, Expression, Operand, apply
from vermilion.ir.opset import constant_of, is_operator, static_shape
from vermilion.ir.symbolic import is_one

Array = NDArray[Any]


def emit_conv_integer(lowering: Lowering, group: Group, node: ir.Node) -> None:
    """Write a ConvInteger with all of its group in the epilogue."""
    _Images(lowering, group, node).emit()


def check_conv_integer(node: ir.Node) -> str:
    """Say why a ConvInteger is not generated, empty if it is."""
    kernel = constant_of(node.inputs[1])
    if kernel is None:
        return "ConvInteger with weights that are not constant"
    if len(kernel.shape) not in (3, 4):
        return "ConvInteger in more than two dimensions"
    zeros = [zero_shape(node, at) for at in (2, 3)]
    if zeros[0] is None or not all(map(is_one, zeros[0])):
        return "ConvInteger with more than one zero point of its images"
    if zeros[1] is None or math.prod(zeros[1]) not in (1, kernel.numpy().shape[0]):
        return "ConvInteger with zero points that are neither one number nor one a channel"
    return check_bytes(node)


class _Images(IntegerOperator):
    """A convolution with constant weights: images and rows of pixels."""

    def emit(self) -> None:
        """Add the steps."""
        lowering, node, root = self.lowering, self.node, self.group.root.outputs[0]
        geometry = conv_geometry(node)
        constant = constant_of(node.inputs[1])
        assert constant is not None, "a claimed ConvInteger has constant weights"
        array = constant.numpy()
        taps = array.reshape(*array.shape[:2], *geometry.kernel).transpose(0, 2, 3, 1)
        right = self.zero_point(3, lambda shape: (*shape, 1, 1, 1))
        source, left = self._image(geometry.border)
        by_channel = self._few_products(geometry, taps, right, source)
        if by_channel is None:
            taps, right = self.weights(taps, right)
        else:
            taps, right = by_channel, np.zeros((), np.int64)
        found = self.corrections(
            (left, self._by_channel(right)),
            lambda: self._by_channel(taps.sum(axis=(1, 2, 3), dtype=np.int64)),
            lambda: self._windows(source, taps, geometry), math.prod(taps.shape[1:]),
        )  # fmt: skip
        initial = None if found.initial is None else self.view(found.initial)
        start: Expression = Operand(0, "int")
        if by_channel is not None:  # of sums in float32
            start = Convert(Operand(0), "int")
            start = start if initial is None else apply("add", start, Operand(1, "int"))
        build = self.begin(start, initial, found.others)
        expression = build.of(root)
        result = lowering.output(root, channels_last_order(array.ndim))
        operands = [product._as_operand(lowering, view, result) for view in build.views]
        how = (
            lowering, source, taps, self.key, geometry, as_image(result), operands, expression,
            self.group.nodes,
        )  # fmt: skip
        if by_channel is not None:
            lowering.add(depthwise_step(*how))
            return
        for step in group_steps(*how, self.numeric):
            lowering.add(step if initial is None else with_initial(step))

    def _by_channel(self, numbers: Numbers) -> Numbers:
        """Return numbers of output channels as they stand beside the result."""
        rank = len(static_shape(self.node.outputs[0]) or ())
        if not numbers.shape:
            return numbers
        shape = (1, numbers.shape[0], *(1,) * (rank - 2))
        if isinstance(numbers, np.ndarray):
            return numbers.reshape(shape)
        fitted = numbers.reshaped(shape)
        assert fitted is not None, "dimensions of one element need no copy"
        return fitted

    def _few_products(
        self, geometry: ConvGeometry, taps: Array, zero: Numbers, source: View
    ) -> Array | None:
        """Return weights less their zero point where each channel's few products are float32's."""
        if isinstance(zero, View) or not is_depthwise(geometry, taps, source.shape[1]):
            return None
        less = taps.astype(np.int64) - zero
        largest = np.abs(less).sum(axis=(1, 2, 3)).max()
        return less.astype(np.int16) if largest * 255 < EXACT_FLOAT else None

    def _image(self, border: Border) -> tuple[View, Numbers]:
        """Return the left side without a sign, and its zero point, which fills its border.

        Channels lie side by side.
        """
        value = self.node.inputs[0]
        assert value is not None
        view, zero = as_image(self.lowering.demand(value)), self.zero_point(2, tuple)
        is_signed = view.storage == "s8"
        if not is_signed and (view.strides[1] == 1 or view.shape[1] == 1):
            have = border_of(view)
            has_point = _reads_point(self.node, value.producer())
            if border.is_empty or (has_point and have.joined(border) == have):
                return view, zero
        if is_signed:
            zero = self.numbers(HIGHER, zero)
        known = int(zero) if isinstance(zero, np.ndarray) else 0
        copy = self.lowering.bordered(
            f"{view.buffer.name} in a border", "u8", view.shape, replace(border, byte=known),
            zero if isinstance(zero, View) else None,
        )  # fmt: skip
        expression = HIGHER if is_signed else identity(view)
        label = f"copy of {view.buffer.name}"
        self.lowering.add(map_step([view], [copy], [expression], [label]))
        return copy, zero

    def _windows(self, source: View, taps: Array, geometry: ConvGeometry) -> View:
        """Return the sum of the pixels under each window: one for all channels, or one for each."""
        lowering, shape = self.lowering, static_shape(self.node.outputs[0])
        assert shape is not None
        ones = np.ones((1 if geometry.group == 1 else taps.shape[0], *taps.shape[1:]), np.int8)
        sums = allocate(
            f"{self.key[1]} windows", "i32", (shape[0], ones.shape[0], *shape[2:]),
            channels_last_order(len(shape)),
        )  # fmt: skip
        key = ("ones", *map(str, ones.shape), str(geometry.group))
        for step in group_steps(
            lowering, source, ones, key, geometry, as_image(sums), [], Operand(0, "int"), [],
            self.numeric,
        ):  # fmt: skip
            lowering.add(replace(step, nodes=(sums.buffer.name,)))
        return sums


def convolved_border(codes: ir.Value, point: ir.Value) -> Border | None:
    """Return the border in which ConvIntegers read images of a zero point, None if none does."""
    found: Border | None = None
    for use in codes.uses():
        reader = use.node
        is_convolved = is_operator(reader, "ConvInteger") and use.idx == 0
        if is_convolved and len(static_shape(codes) or ()) == 4 and reader.inputs[2:3] == (point,):
            border = conv_geometry(reader).border
            found = border if found is None else found.joined(border)
    return found


def _reads_point(node: ir.Node, maker: ir.Node | None) -> bool:
    """Say whether a convolution reads codes with the zero point that they were made with."""
    if maker is None or not is_operator(maker, "DynamicQuantizeLinear"):
        return False
    return node.inputs[2:3] == (maker.outputs[2],)

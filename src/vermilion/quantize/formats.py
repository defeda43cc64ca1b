"""Number formats and schemes, as rows of tables.

A scheme says which integer format each kind of tensor takes and how its scales may look. Adding
one is adding a row. What floating-point and block formats do is in `blocks.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.errors import OptionError

# 8 bits have fewer, 16 bits many more.
_FEW_STEPS = 1 << 10


@dataclass(frozen=True)
class IntegerFormat:
    """An integer format and the values that are used of it."""

    name: str
    data_type: ir.DataType
    high: int
    low: int

    @property
    def numpy_type(self) -> np.dtype[Any]:
        """Return numpy's type of the stored integers."""
        return self.data_type.numpy()

    @property
    def is_signed(self) -> bool:
        """Say whether zero lies in the middle."""
        return self.low < 0

    @property
    def has_fine_steps(self) -> bool:
        """Say whether there are so many steps that no range needs to be cut."""
        return self.high - self.low > _FEW_STEPS


# The lowest integer is left unused, so that the range is symmetric and a product of two never
# overflows a sign.
# Source: AMD Quark for ONNX, symmetric signed ranges.
INT8 = IntegerFormat("int8", ir.DataType.INT8, 127, -127)
UINT8 = IntegerFormat("uint8", ir.DataType.UINT8, 255, 0)
INT16 = IntegerFormat("int16", ir.DataType.INT16, 32767, -32767)
INT32 = IntegerFormat("int32", ir.DataType.INT32, 2**31 - 1, -(2**31 - 1))
_MIDDLE = 128
INT4 = IntegerFormat("int4", ir.DataType.INT4, 7, -7)
UINT4 = IntegerFormat("uint4", ir.DataType.UINT4, 15, 0)


@dataclass(frozen=True)
class Parameters:
    """How integers stand for real numbers: real = (integer - zero_point) × scale.

    Shapes: `scale` is (), or (C,) along `axis`.
    """

    number: IntegerFormat
    scale: NDArray[np.float32]
    zero_point: int = 0
    axis: int | None = None

    def aligned(self, rank: int) -> NDArray[np.float32]:
        """Return the scale so that it broadcasts over a tensor of `rank` axes."""
        if self.axis is None:
            return self.scale
        lengths = [1] * rank
        lengths[self.axis] = -1
        return self.scale.reshape(lengths)

    def in_middle(self) -> Parameters:
        """Return the same numbers as uint8 with a zero point of 128, if they are int8."""
        if self.number is not INT8 or self.zero_point:
            return self
        return Parameters(UINT8, self.scale, _MIDDLE, self.axis)

    def to_integers(self, values: NDArray[Any]) -> NDArray[Any]:
        """Round half to even; what is out of range goes to its end."""
        scaled = np.rint(values.astype(np.float64) / self.aligned(values.ndim).astype(np.float64))
        clipped = np.clip(scaled + self.zero_point, self.number.low, self.number.high)
        integers: NDArray[Any] = clipped.astype(self.number.numpy_type)
        return integers

    def to_reals(self, integers: NDArray[Any]) -> NDArray[np.float32]:
        """Return what the integers stand for."""
        centred = integers.astype(np.float32) - np.float32(self.zero_point)
        reals: NDArray[np.float32] = centred * self.aligned(integers.ndim)
        return reals


Column = Literal["xint8", "a8w8", "a16w8"]


@dataclass(frozen=True)
class Scheme:
    """What each kind of tensor becomes.

    `column` names the operators of AMD's table that take the format, `also` some beside it. With
    `power_of_two`, scales are powers of two and move until the shifters of the first NPU
    generations can follow; every tensor between operators is rounded and biases are as narrow as
    weights. Without it, scales are any number, biases are int32 at the product of two scales, and
    elementwise operators are computed in float between their rounded borders; not with
    `all_tensors`.
    """

    name: str
    title: str
    column: Column
    activation: IntegerFormat
    weight: IntegerFormat
    bias: IntegerFormat
    power_of_two: bool = False
    per_channel: bool = False
    source: str = ""
    all_tensors: bool = False
    also: tuple[str, ...] = ()

    @property
    def rounds_between(self) -> bool:
        """Say whether what passes from one elementwise operator to the next is rounded too."""
        return self.power_of_two or self.all_tensors

    @property
    def has_fine_steps(self) -> bool:
        """Say whether activations have so many steps that no range needs to be cut."""
        return self.activation.has_fine_steps


@dataclass(frozen=True)
class FloatScheme:
    """Tensors become floating-point numbers of fewer bits, or blocks that share an exponent.

    `number` is a row of `blocks.FORMATS`, or `bf16` or `fp16`. With `all_tensors` every tensor
    between operators is rounded; without, what matrix products multiply.
    """

    name: str
    title: str
    number: str
    all_tensors: bool
    source: str = ""


@dataclass(frozen=True)
class WeightScheme:
    """Only the weights of matrix products are rounded, in blocks along what is summed over.

    `fused` is ONNX Runtime's MatMulNBits (opset 17 is enough); else DequantizeLinear with blocks,
    which needs opset 21.
    """

    name: str
    title: str
    number: IntegerFormat
    fused: bool
    source: str = ""


@dataclass(frozen=True)
class DynamicScheme:
    """Matrix products on integers; activations are rounded with the range of the run."""

    name: str
    title: str
    number: IntegerFormat
    source: str = ""


AnyScheme = Scheme | FloatScheme | WeightScheme | DynamicScheme

_QUARK = "AMD Quark for ONNX 0.13, presets"

_INTEGER = (
    Scheme(
        name="xint8",
        title="int8 activations, weights and biases, power-of-two scales",
        column="xint8",
        activation=INT8,
        weight=INT8,
        bias=INT8,
        power_of_two=True,
        source=_QUARK,
    ),
    Scheme(
        name="a8w8",
        title="uint8 or int8 activations, int8 weights for each channel, int32 biases",
        column="a8w8",
        activation=UINT8,
        weight=INT8,
        bias=INT32,
        per_channel=True,
        source=f"{_QUARK}; Ryzen AI 1.6 release notes: general asymmetric models",
    ),
    Scheme(
        name="a16w8",
        title="int16 activations, int8 weights for each channel, int32 biases",
        column="a16w8",
        activation=INT16,
        weight=INT8,
        bias=INT32,
        per_channel=True,
        source=_QUARK,
    ),
)

_OCP = "OCP Microscaling Formats (MX) Specification 1.0"

_FLOAT = (
    FloatScheme(
        "bf16",
        "bfloat16 weights and activations, no calibration",
        "bf16",
        all_tensors=True,
        source="Ryzen AI documentation 1.8, ops_support.rst, column BF16",
    ),
    FloatScheme(
        "fp16", "float16 weights and activations, no calibration", "fp16", True, "IEEE 754"
    ),
    FloatScheme(
        "bfp16",
        "matrix products on blocks of 8 values with 8 bits each and a shared exponent",
        "bfp16",
        all_tensors=False,
        source="AMD Quark for ONNX 0.13, BFPQuantizeDequantize",
    ),
    FloatScheme(
        "mx9",
        "matrix products on blocks of 16 values with 8 bits each and shared exponents",
        "mx9",
        all_tensors=False,
        source="B. Rouhani et al., With Shared Microexponents, A Little Shifting Goes a Long Way",
    ),
    *(
        FloatScheme(name, f"matrix products on blocks of 32 values: {what}", name, False, _OCP)
        for name, what in (
            ("mxint8", "8-bit integers, a shared scale"),
            ("mxfp8e4m3", "8-bit floats (4 bits of exponent), a shared scale"),
            ("mxfp8e5m2", "8-bit floats (5 bits of exponent), a shared scale"),
            ("mxfp6e2m3", "6-bit floats (2 bits of exponent), a shared scale"),
            ("mxfp6e3m2", "6-bit floats (3 bits of exponent), a shared scale"),
            ("mxfp4", "4-bit floats, a shared scale"),
        )
    ),
)

_NBITS = "ONNX Runtime, docs/ContribOperators.md, MatMulNBits"

_WEIGHTS = (
    WeightScheme("int4", "int4 weights in blocks, as MatMulNBits", INT4, True, _NBITS),
    WeightScheme("uint4", "uint4 weights in blocks, as MatMulNBits", UINT4, True, _NBITS),
    WeightScheme(
        "int4-qdq", "int4 weights in blocks, as DequantizeLinear", INT4, False, "ONNX opset 21"
    ),
    WeightScheme(
        "uint4-qdq", "uint4 weights in blocks, as DequantizeLinear", UINT4, False, "ONNX opset 21"
    ),
)

_DYNAMIC = (
    DynamicScheme(
        "int8-dynamic",
        "int8 weights of matrix products, uint8 activations with the range of each run",
        INT8,
        "ONNX opset 11, DynamicQuantizeLinear and MatMulInteger",
    ),
)

_ALL: tuple[AnyScheme, ...] = (*_INTEGER, *_FLOAT, *_WEIGHTS, *_DYNAMIC)

SCHEMES: Mapping[str, AnyScheme] = {scheme.name: scheme for scheme in _ALL}


def scale_of(position: int) -> np.float32:
    """Return the scale of a tensor whose binary point lies at `position`: 2^-position."""
    return np.float32(2.0**-position)


def at_position(position: int, number: IntegerFormat) -> Parameters:
    """Return the parameters of a tensor whose scale is 2^-`position`."""
    return Parameters(number, np.asarray(scale_of(position), np.float32))


def any_scheme_named(name: str) -> AnyScheme:
    """Return the scheme of that name.

    Raises: OptionError that lists the known ones.
    """
    found = SCHEMES.get(name)
    if found is None:
        known = ", ".join(f"`{known}`" for known in sorted(SCHEMES))
        raise OptionError(f"unknown quantization scheme `{name}`", hint=f"known schemes: {known}")
    return found


def scheme_named(name: str) -> Scheme:
    """Return the integer scheme of that name.

    Raises: OptionError also for schemes of another kind.
    """
    found = any_scheme_named(name)
    if not isinstance(found, Scheme):
        integer = ", ".join(f"`{scheme.name}`" for scheme in _INTEGER)
        raise OptionError(f"`{name}` has no integer activations", hint=f"schemes with: {integer}")
    return found

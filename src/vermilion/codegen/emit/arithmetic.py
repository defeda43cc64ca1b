"""Expressions → vector instructions; loads and stores of every storage type."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cached_property

from vermilion.codegen.emit.builder import Function
from vermilion.codegen.emit.operations import float_operation, integer_operation
from vermilion.codegen.emit.values import Index, Value, splat_integer
from vermilion.codegen.emit.vector_math import VectorMath
from vermilion.codegen.tensor import STORAGE_BYTES, Storage
from vermilion.ir.expression import (
    COMPARISONS,
    Apply,
    Constant,
    Convert,
    Element,
    Expression,
    Kind,
    Operand,
)
from vermilion.ir.symbolic import is_known, is_one

KIND_OF_STORAGE: Mapping[Storage, Kind] = {
    "f32": "float",
    "bf16": "float",
    "f16": "float",
    "u8": "int",
    "s8": "int",
    "u16": "int",
    "s16": "int",
    "i32": "int",
    "i64": "long",
    "bool": "bool",
}

_ELEMENT = {"float": "float", "int": "i32", "long": "i64", "bool": "i1"}
_RAW = {
    "f32": "float",
    # Moved as integers: where no instruction knows bfloat16, LLVM would call a function for each.
    "bf16": "i16",
    "f16": "half",
    "u8": "i8",
    "s8": "i8",
    "u16": "i16",
    "s16": "i16",
    "i32": "i32",
    "i64": "i64",
    "bool": "i8",
}
_PREDICATES = {
    "equal": ("oeq", "eq"),
    "less": ("olt", "slt"),
    "less_equal": ("ole", "sle"),
    "greater": ("ogt", "sgt"),
    "greater_equal": ("oge", "sge"),
}


class Arithmetic:
    """Vector arithmetic of one width inside one LLVM function."""

    def __init__(self, function: Function, lanes: int) -> None:
        self.f = function
        self.lanes = lanes
        self.math = VectorMath(function, lanes)
        # What 16 bits were read as: stored again, they are the same bits, whatever they mean.
        self._halves: dict[tuple[Storage, str], Value] = {}

    def type(self, kind: Kind) -> str:
        """Return the vector type in which a kind is computed."""
        return f"<{self.lanes} x {_ELEMENT[kind]}>"

    @cached_property
    def lane_numbers(self) -> Value:
        """0, 1, 2, … as i64 lanes."""
        numbers = ", ".join(f"i64 {i}" for i in range(self.lanes))
        return Value(f"<{self.lanes} x i64>", f"<{numbers}>")

    def tail_mask(self, count: Index) -> Value:
        """Return a mask of the first `count` lanes."""
        if isinstance(count, int):
            bits = ", ".join(f"i1 {int(i < count)}" for i in range(self.lanes))
            return Value(f"<{self.lanes} x i1>", f"<{bits}>")
        count = self.f.index(count)
        # Out of the optimizer's sight: see `store` for what it makes of a mask that it knows.
        hidden = self.f.emit("i64", f'call i64 asm "", "=r,0"({count})')
        wide = self.splat(hidden)
        return self.f.compare("slt", self.lane_numbers, wide)

    def splat(self, scalar: Value) -> Value:
        """Repeat a scalar in every lane."""
        f, type_ = self.f, f"<{self.lanes} x {scalar.type}>"
        one = f.emit(type_, f"insertelement {type_} poison, {scalar}, i32 0")
        return f.emit(
            type_,
            f"shufflevector {one}, {type_} poison, <{self.lanes} x i32> zeroinitializer",
        )

    # Memory ---------------------------------------------------------------------------------

    def load(self, storage: Storage, pointer: Value, *, mask: Value | None = None) -> Value:
        """Load consecutive elements and convert them to the kind they are computed in."""
        raw = f"<{self.lanes} x {_RAW[storage]}>"
        if mask is None:
            value = self.f.load(raw, pointer, align=1)
        else:
            name = f"llvm.masked.load.v{self.lanes}{_suffix(storage)}.p0"
            self.f.module.declare(name, raw, ["ptr", f"<{self.lanes} x i1>", raw])
            zero = Value(raw, "zeroinitializer")
            value = self.f.call(name, raw, [pointer, mask, zero])
        return self._widen(storage, value)

    def load_splat(self, storage: Storage, pointer: Value) -> Value:
        """Load one element and repeat it in every lane."""
        return self._widen(storage, self.splat(self.f.load(_RAW[storage], pointer, align=1)))

    def load_strided(
        self, storage: Storage, pointer: Value, stride: Index, *, mask: Value | None = None
    ) -> Value:
        """Load elements `stride` apart."""
        f = self.f
        raw = f"<{self.lanes} x {_RAW[storage]}>"
        pointers = self._strided(storage, pointer, stride)
        name = f"llvm.masked.gather.v{self.lanes}{_suffix(storage)}.v{self.lanes}p0"
        every = mask if mask is not None else self.tail_mask(self.lanes)
        f.module.declare(name, raw, [f"<{self.lanes} x ptr>", f"<{self.lanes} x i1>", raw])
        value = f.call(name, raw, [pointers, every, Value(raw, "zeroinitializer")])
        return self._widen(storage, value)

    def store(
        self, storage: Storage, value: Value, pointer: Value, *, mask: Value | None = None,
        is_exact: bool = False,
    ) -> None:  # fmt: skip
        """Convert to a storage type and store consecutive elements."""
        narrow = self._narrow(storage, value, is_exact=is_exact)
        if mask is None:
            self.f.store(narrow, pointer, align=1)
            return
        if mask.name.startswith("<i1 1, i1 0"):
            # LLVM 22 stores four bytes for a masked store of one byte, if the mask is constant.
            first = self.f.emit(_RAW[storage], f"extractelement {narrow}, i32 0")
            return self.f.store(first, pointer, align=1)
        name = f"llvm.masked.store.v{self.lanes}{_suffix(storage)}.p0"
        self.f.module.declare(name, "void", [narrow.type, "ptr", f"<{self.lanes} x i1>"])
        self.f.call_void(name, [narrow, pointer, mask])

    def store_strided(
        self, storage: Storage, value: Value, pointer: Value, stride: Index, *, mask: Value,
        is_exact: bool = False,
    ) -> None:  # fmt: skip
        """Convert to a storage type and store elements `stride` apart."""
        f = self.f
        narrow = self._narrow(storage, value, is_exact=is_exact)
        pointers = self._strided(storage, pointer, stride)
        name = f"llvm.masked.scatter.v{self.lanes}{_suffix(storage)}.v{self.lanes}p0"
        f.module.declare(name, "void", [narrow.type, pointers.type, f"<{self.lanes} x i1>"])
        f.call_void(name, [narrow, pointers, mask])

    def load_along(
        self, storage: Storage, pointer: Value, stride: int, mask: Value | None = None
    ) -> Value:
        """Load elements `stride` apart; with 0, one in every lane."""
        if not is_known(stride):
            return self.load_strided(storage, pointer, self.f.index(stride), mask=mask)
        if stride == 0:
            return self.load_splat(storage, pointer)
        if stride == 1:
            return self.load(storage, pointer, mask=mask)
        return self.load_strided(storage, pointer, stride, mask=mask)

    def store_along(
        self, storage: Storage, value: Value, pointer: Value, stride: int,
        mask: Value | None = None, *, is_exact: bool = False,
    ) -> None:  # fmt: skip
        """Convert to a storage type and store elements `stride` apart."""
        if is_one(stride):
            self.store(storage, value, pointer, mask=mask, is_exact=is_exact)
            return
        every = mask if mask is not None else self.tail_mask(self.lanes)
        apart = stride if is_known(stride) else self.f.index(stride)
        self.store_strided(storage, value, pointer, apart, mask=every, is_exact=is_exact)

    def _strided(self, storage: Storage, pointer: Value, stride: Index) -> Value:
        """Return a pointer for each lane, `stride` elements apart."""
        f, size = self.f, STORAGE_BYTES[storage]
        if isinstance(stride, int):
            step = splat_integer(stride * size, self.lanes, "i64")
        else:
            step = self.splat(f.multiply(stride, size))
        offsets = f.binary("mul", self.lane_numbers, step)
        return f.emit(f"<{self.lanes} x ptr>", f"getelementptr i8, {pointer}, {offsets}")

    def _widen(self, storage: Storage, value: Value) -> Value:
        f = self.f
        match storage:
            case "f32" | "i32" | "i64":
                return value
            case "bf16":
                # A bfloat16 is the upper half of a float32.
                bits = f.convert("zext", value, self.type("int"))
                high = f.binary("shl", bits, splat_integer(16, self.lanes))
                wide = f.convert("bitcast", high, self.type("float"))
                self._halves[storage, wide.name] = value
                return wide
            case "f16":
                wide = f.convert("fpext", value, self.type("float"))
                self._halves[storage, wide.name] = value
                return wide
            case "u8" | "u16":
                return f.convert("zext", value, self.type("int"))
            case "s8" | "s16":
                return f.convert("sext", value, self.type("int"))
            case "bool":
                return f.compare("ne", value, splat_integer(0, self.lanes, "i8"))

    def _narrow(self, storage: Storage, value: Value, *, is_exact: bool = False) -> Value:
        f = self.f
        if (storage, value.name) in self._halves:
            return self._halves[storage, value.name]
        match storage:
            case "f32" | "i32" | "i64":
                return value
            case "bf16":
                return self.to_bf16(value, is_exact=is_exact)
            case "f16":
                return f.convert("fptrunc", value, f"<{self.lanes} x half>")
            case "u8" | "s8":
                return f.convert("trunc", value, f"<{self.lanes} x i8>")
            case "u16" | "s16":
                return f.convert("trunc", value, f"<{self.lanes} x i16>")
            case "bool":
                return f.convert("zext", value, f"<{self.lanes} x i8>")

    def to_bf16(self, value: Value, *, is_exact: bool = False) -> Value:
        """Round float32 to bfloat16, half to even; give its bits.

        The processor's instruction makes 0 of what lies below 1.2e-38; `is_exact` keeps it.
        """
        f, half = self.f, f"<{self.lanes} x i16>"
        if f.module.has_bf16 and not is_exact:
            rounded = f.convert("fptrunc", value, f"<{self.lanes} x bfloat>")
            return f.convert("bitcast", rounded, half)
        # Without the instruction: add what carries into the upper half, and keep that half.
        bits = f.convert("bitcast", value, self.type("int"))
        odd = f.binary("and", f.binary("lshr", bits, splat_integer(16, self.lanes)),
                       splat_integer(1, self.lanes))  # fmt: skip
        carry = f.binary("add", odd, splat_integer(0x7FFF, self.lanes))
        rounded = f.binary("add", bits, carry)
        is_nan = f.compare_floats("uno", value, value)
        kept = f.select(is_nan, splat_integer(0x7FC00000, self.lanes), rounded)
        high = f.binary("lshr", kept, splat_integer(16, self.lanes))
        return f.convert("trunc", high, half)

    # Expressions ----------------------------------------------------------------------------

    def evaluate(
        self,
        expression: Expression,
        operand: Callable[[int], Value],
        table: Callable[[int], Value] | None = None,
    ) -> Value:
        """Compute an expression: `operand` gives a leaf's value, `table` a table's pointer."""
        known: dict[Expression, Value] = {}  # equal parts are computed once

        def compute(node: Expression) -> Value:
            if node not in known:
                if isinstance(node, Element):
                    assert table is not None, "this kernel has no tables"
                    place = self.f.at(table(node.operand), 4 * node.position)
                    known[node] = self.load_splat("f32" if node.kind == "float" else "i32", place)
                else:
                    known[node] = self._compute(node, compute, operand)
            return known[node]

        return compute(expression)

    def _compute(
        self,
        node: Operand | Constant | Apply | Convert,
        compute: Callable[[Expression], Value],
        operand: Callable[[int], Value],
    ) -> Value:
        match node:
            case Operand():
                return operand(node.index)
            case Constant():
                return self.constant(node)
            case Convert():
                inner = node.argument
                if node.kind == "int" and isinstance(inner, Apply) and inner.operation == "round":
                    return self._rounded(compute(inner.arguments[0]))
                return self._convert(compute(inner), inner.kind, node.kind)
            case Apply():
                return self.apply(node, [compute(argument) for argument in node.arguments])

    def constant(self, node: Constant) -> Value:
        """Return a number in every lane."""
        if node.kind == "float":
            return self.math.number(node.value)
        return splat_integer(int(node.value), self.lanes, _ELEMENT[node.kind])

    def _rounded(self, value: Value) -> Value:
        """Round to int32, half to even, in one instruction."""
        f, type_ = self.f, self.type("int")
        if self.lanes == 8:
            return f.intrinsic("llvm.x86.avx.cvt.ps2dq.256", type_, [value])
        name = "llvm.x86.avx512.mask.cvtps2dq.512"
        every, as_set = Value("i16", "-1"), Value("i32", "4")  # all lanes; the mode that is set
        return f.intrinsic(name, type_, [value, Value(type_, "undef"), every, as_set])

    def _convert(self, value: Value, source: Kind, target: Kind) -> Value:
        f = self.f
        if source == target:
            return value
        if target == "bool":
            if source == "float":
                return f.compare_floats("une", value, self.math.number(0.0))
            return f.compare("ne", value, splat_integer(0, self.lanes, _ELEMENT[source]))
        operation = {
            ("float", "int"): "fptosi",
            ("float", "long"): "fptosi",
            ("int", "float"): "sitofp",
            ("long", "float"): "sitofp",
            ("bool", "float"): "uitofp",
            ("int", "long"): "sext",
            ("long", "int"): "trunc",
            ("bool", "int"): "zext",
            ("bool", "long"): "zext",
        }[source, target]
        return f.convert(operation, value, self.type(target))

    def apply(self, node: Apply, a: list[Value]) -> Value:
        """Write one operation on values that are computed."""
        operation = node.operation
        if operation == "select":
            return self.f.select(a[0], a[1], a[2])
        kind = node.arguments[0].kind
        if operation in COMPARISONS:
            ordered, signed = _PREDICATES[operation]
            if kind == "float":
                return self.f.compare_floats(ordered, a[0], a[1])
            return self.f.compare("eq" if signed == "eq" else signed, a[0], a[1])
        if kind != "float":
            return integer_operation(self.f, self.lanes, operation, _ELEMENT[kind], a)
        if operation in ("max", "min"):
            return self._extreme(node, a)
        if operation == "bf16":
            return self._widen("bf16", self.to_bf16(a[0], is_exact=True))
        if operation == "f16":
            return self._widen("f16", self._narrow("f16", a[0]))
        return float_operation(self.math, operation, a)

    def _extreme(self, node: Apply, a: list[Value]) -> Value:
        """Return the greater or the lesser; NaN where either is.

        Bounds that were known when the code was written are no NaN, and are one instruction: with
        them on the left, a NaN of the data comes out. int8 networks bound every value.
        """
        m = self.math
        quick, exact = (
            (m.maximum, m.maximum_or_nan) if node.operation == "max"
            else (m.minimum, m.minimum_or_nan)
        )  # fmt: skip
        first, second = node.arguments
        if isinstance(first, Constant | Element) and not _is_nan(first):
            return quick(a[0], a[1])
        if isinstance(second, Constant | Element) and not _is_nan(second):
            return quick(a[1], a[0])
        return exact(a[0], a[1])


def _is_nan(node: Expression) -> bool:
    return isinstance(node, Constant) and math.isnan(node.value)


def _suffix(storage: Storage) -> str:
    """Return how LLVM writes an element in the name of an intrinsic."""
    raw = _RAW[storage]
    return {"float": "f32", "half": "f16"}.get(raw, raw)

"""Block formats written in standard ONNX operators, so that any runtime can execute them.

Each format, rank, axis and length is one function of the model. Exponents come from a logarithm
that is set right by a comparison, so that powers of two fall where they must; blocks of nothing
but subnormal numbers are rounded as if their largest were the smallest normal one.
"""

from __future__ import annotations

import math

import onnx
import onnx_ir as ir

from vermilion.quantize.blocks import BlockFormat

DOMAIN = "vermilion.blocks"

# ReduceMax takes its axes as an input from opset 18 on.
_AXES_AS_INPUT = 18
_SMALLEST = 2.0**-126
_PAIR = 2


def add_emulation(
    model: ir.Model, row: BlockFormat, rank: int, axis: int, length: int
) -> tuple[str, str]:
    """Make sure that `model` has the function for one kind of tensor; give domain and name."""
    name = f"{row.name}_rank{rank}_axis{axis}_length{length}"
    identifier = (DOMAIN, name, "")
    if identifier not in model.functions:
        opset = model.opset_imports.get("", 0)
        text = _text(name, row, rank, axis, length, opset)
        proto = onnx.parser.parse_function(text)
        model.functions[identifier] = ir.serde.deserialize_function(proto)
        model.graph.opset_imports[DOMAIN] = 1
    return DOMAIN, name


def _text(name: str, row: BlockFormat, rank: int, axis: int, length: int, opset: int) -> str:
    order = [i for i in range(rank) if i != axis] + [axis]
    back = [order.index(i) for i in range(rank)]
    padded = length + -length % row.size
    keep = [0] * (rank - 1)
    lines = [
        f"moved = Transpose<perm = {order}>(x)",
        f"pads = Constant<value_ints = {[0] * (2 * rank - 1) + [padded - length]}>()",
        "whole = Pad(moved, pads)",
        f"cut = Constant<value_ints = {[*keep, padded // row.size, row.size]}>()",
        "block = Reshape(whole, cut)",
        "magnitude = Abs(block)",
        *_largest("largest", "magnitude", opset),
        *_power("top", "largest", _SMALLEST),
        *_BODIES[row.kind](row, keep, padded, opset),
        f"joined = Constant<value_ints = {[*keep, padded]}>()",
        "long = Reshape(rounded, joined)",
        "begin = Constant<value_ints = [0]>()",
        f"end = Constant<value_ints = [{length}]>()",
        f"last = Constant<value_ints = [{rank - 1}]>()",
        "short = Slice(long, begin, end, last)",
        f"y = Transpose<perm = {back}>(short)",
    ]
    body = "\n".join(lines)
    return f'<opset_import: ["" : {opset}], domain: "{DOMAIN}"> {name} (x) => (y) {{ {body} }}'


def _largest(result: str, source: str, opset: int) -> list[str]:
    if opset < _AXES_AS_INPUT:
        return [f"{result} = ReduceMax<axes = [-1], keepdims = 1>({source})"]
    return [
        f"{result}_axes = Constant<value_ints = [-1]>()",
        f"{result} = ReduceMax<keepdims = 1>({source}, {result}_axes)",
    ]


def _power(result: str, source: str, least: float) -> list[str]:
    """Return the largest power of two that is not above `source`, nor below `least`."""
    return [
        *_floats(f"{result}_least", least),
        f"{result}_safe = Max({source}, {result}_least)",
        f"{result}_log = Log({result}_safe)",
        *_floats(f"{result}_bits", 1.0 / math.log(2.0)),
        f"{result}_exponent = Mul({result}_log, {result}_bits)",
        f"{result}_floor = Floor({result}_exponent)",
        *_floats(f"{result}_two", 2.0),
        *_floats(f"{result}_half", 0.5),
        f"{result}_first = Pow({result}_two, {result}_floor)",
        f"{result}_above = Greater({result}_first, {result}_safe)",
        f"{result}_down = Mul({result}_first, {result}_half)",
        f"{result}_up = Mul({result}_first, {result}_two)",
        f"{result}_below = GreaterOrEqual({result}_safe, {result}_up)",
        f"{result}_raised = Where({result}_below, {result}_up, {result}_first)",
        f"{result} = Where({result}_above, {result}_down, {result}_raised)",
    ]


def _floats(name: str, value: float) -> list[str]:
    return [f"{name} = Constant<value_float = {value!r}>()"]


def _rounded(source: str, step: str, low: float, high: float) -> list[str]:
    """Round `source` to multiples of `step` between `low` and `high` of them."""
    return [
        f"scaled = Div({source}, {step})",
        "near = Round(scaled)",
        *_floats("low", low),
        *_floats("high", high),
        "held = Clip(near, low, high)",
        f"rounded = Mul(held, {step})",
    ]


def _bfp(row: BlockFormat, keep: list[int], padded: int, opset: int) -> list[str]:
    most = float(2**row.mantissa - 1)
    step = [*_floats("unit", 2.0 ** (1 - row.mantissa)), "step = Mul(top, unit)"]
    return [*step, *_rounded("block", "step", -most, most)]


def _microexponent(row: BlockFormat, keep: list[int], padded: int, opset: int) -> list[str]:
    most = float(2**row.mantissa - 1)
    pairs = [*keep, padded // row.size, row.size // _PAIR, _PAIR]
    return [
        f"apart = Constant<value_ints = {pairs}>()",
        "pair = Reshape(block, apart)",
        "pair_magnitude = Abs(pair)",
        *_largest("pair_largest", "pair_magnitude", opset),
        *_power("pair_top", "pair_largest", _SMALLEST),
        f"inner = Constant<value_ints = {[*keep, padded // row.size, 1, 1]}>()",
        "block_top = Reshape(top, inner)",
        "lower = Less(pair_top, block_top)",
        *_floats("one", 2.0 ** (1 - row.mantissa)),
        *_floats("half", 2.0**-row.mantissa),
        "unit = Where(lower, half, one)",
        "step = Mul(block_top, unit)",
        *_rounded("pair", "step", -most, most),
    ]


def _mx(row: BlockFormat, keep: list[int], padded: int, opset: int) -> list[str]:
    shared = [
        *_floats("unit", 2.0**-row.emax),
        "shared = Mul(top, unit)",
        "element = Div(block, shared)",
    ]
    if row.exponent == 0:
        most = 2.0**row.mantissa
        step = _floats("step", 1.0 / most)
        rounded = _rounded("element", "step", -2.0 * most, row.highest * most)
        return [*shared, *step, *_renamed(rounded), "rounded = Mul(rounded_element, shared)"]
    smallest = 2.0 ** (2 - 2 ** (row.exponent - 1))
    return [
        *shared,
        "element_magnitude = Abs(element)",
        *_power("own", "element_magnitude", smallest),
        *_floats("fraction", 2.0**-row.mantissa),
        "step = Mul(own, fraction)",
        "scaled = Div(element, step)",
        "near = Round(scaled)",
        "value = Mul(near, step)",
        *_floats("low", -row.highest),
        *_floats("high", row.highest),
        "held = Clip(value, low, high)",
        "rounded = Mul(held, shared)",
    ]


def _renamed(lines: list[str]) -> list[str]:
    return [*lines[:-1], lines[-1].replace("rounded =", "rounded_element =")]


_BODIES = {"bfp": _bfp, "microexponent": _microexponent, "mx": _mx}

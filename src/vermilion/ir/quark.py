"""The one operator of AMD Quark's own that stands in its BFP16 files, written in standard ones.

`com.amd.quark::BFPQuantizeDequantize` gives the nearest values in blocks of 8 along an axis, which
share the exponent of the largest and have 7 bits of magnitude; its library is needed to run it.
Here each call becomes one of a function of the model, so that any runtime has it.

Source: AMD Quark for ONNX 0.13, BFPQuantizeDequantize, `to_bfp`, rounding half to even.
"""

from __future__ import annotations

import math

import onnx

DOMAIN = "com.amd.quark"
OPERATOR = "BFPQuantizeDequantize"
FUNCTIONS = "vermilion.quark"

BLOCK = 8
MOST = 127  # 7 bits of magnitude
_STEP = 2.0**-6  # of the power of two that the largest is made of
_SMALLEST = 2.0**-126
_OLDEST_OPSET = 12  # GreaterOrEqual
_AXES_AS_INPUT = 18
_END = 2**62

# What is written for BFP16; another number makes another format, which is not translated.
_WANTED = {
    "bfp_method": b"to_bfp",
    "bit_width": 16,
    "block_size": BLOCK,
    "rounding_mode": 2,
    "convert_to_bfloat_before_bfp": 0,
}


def write_blocks_in_standard_operators(model: onnx.ModelProto) -> int:
    """Translate all calls that are BFP16, in place; give their number. Others stay as they are."""
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)
    if opset < _OLDEST_OPSET:
        return 0
    done = 0
    written: set[str] = set()
    for node in model.graph.node:
        axis = _axis(node)
        if axis is None:
            continue
        name = f"bfp16_axis_{axis}".replace("-", "minus_")
        if name not in written:
            model.functions.append(onnx.parser.parse_function(_text(name, axis, opset)))
            written.add(name)
        node.domain, node.op_type = FUNCTIONS, name
        del node.attribute[:]
        done += 1
    if done:
        model.opset_import.append(onnx.OperatorSetIdProto(domain=FUNCTIONS, version=1))
    return done


def _axis(node: onnx.NodeProto) -> int | None:
    """Return the axis of a call that is BFP16, None for any other node."""
    if node.domain != DOMAIN or node.op_type != OPERATOR or len(node.input) != 1:
        return None
    found: dict[str, object] = {
        a.name: a.i if a.type == onnx.AttributeProto.INT else a.s for a in node.attribute
    }
    if any(found.get(name, value) != value for name, value in _WANTED.items()):
        return None
    axis = found.get("axis", 1)
    return axis if isinstance(axis, int) else None


def _text(name: str, axis: int, opset: int) -> str:
    """Return the function: x as (before, axis, behind), cut into blocks, rounded, put together."""
    end = axis + 1 if axis != -1 else _END
    largest = (
        "largest = ReduceMax<axes = [2], keepdims = 1>(size)"
        if opset < _AXES_AS_INPUT
        else "largest = ReduceMax<keepdims = 1>(size, two)"
    )
    body = f"""
        zero = Constant<value_ints = [0]>()
        one = Constant<value_ints = [1]>()
        two = Constant<value_ints = [2]>()
        three = Constant<value_ints = [3]>()
        rest = Constant<value_ints = [-1]>()
        eight = Constant<value_ints = [{BLOCK}]>()
        at = Constant<value_ints = [{axis}]>()
        behind_at = Constant<value_ints = [{end}]>()
        shape = Shape(x)
        flat = Flatten<axis = {axis}>(x)
        flat_shape = Shape(flat)
        before = Slice(flat_shape, zero, one)
        length = Slice(shape, at, behind_at)
        apart = Concat<axis = 0>(before, length, rest)
        long = Reshape(x, apart)
        long_shape = Shape(long)
        behind = Slice(long_shape, two, three)
        minus = Neg(length)
        missing = Mod(minus, eight)
        pads = Concat<axis = 0>(zero, zero, zero, zero, missing, zero)
        whole = Pad(long, pads)
        cut = Concat<axis = 0>(zero, rest, eight, behind)
        block = Reshape(whole, cut)
        size = Abs(block)
        {largest}
        least = Constant<value_float = {_SMALLEST!r}>()
        safe = Max(largest, least)
        logarithm = Log(safe)
        bits = Constant<value_float = {1.0 / math.log(2.0)!r}>()
        exponent = Mul(logarithm, bits)
        floor = Floor(exponent)
        base = Constant<value_float = 2.0>()
        half = Constant<value_float = 0.5>()
        guess = Pow(base, floor)
        lower = Mul(guess, half)
        higher = Mul(guess, base)
        is_above = Greater(guess, safe)
        is_below = GreaterOrEqual(safe, higher)
        raised = Where(is_below, higher, guess)
        top = Where(is_above, lower, raised)
        unit = Constant<value_float = {_STEP!r}>()
        step = Mul(top, unit)
        scaled = Div(block, step)
        near = Round(scaled)
        low = Constant<value_float = {-float(MOST)!r}>()
        high = Constant<value_float = {float(MOST)!r}>()
        held = Clip(near, low, high)
        rounded = Mul(held, step)
        joined = Concat<axis = 0>(zero, rest, behind)
        padded = Reshape(rounded, joined)
        short = Slice(padded, zero, length, one)
        y = Reshape(short, shape)
    """
    return f'<opset_import: ["" : {opset}], domain: "{FUNCTIONS}"> {name} (x) => (y) {{ {body} }}'
